"""Teams: making, asking, passing to kernels, destroying; peer and multicast arrays of them."""

import itertools
import re

import numpy as np
import pytest
from numba import cuda
from numba.core.errors import TypingError

import gpushmem as shmem
from gpushmem.errors import ArgumentError, SymmetryError, TeamError
from tests import gpus
from tests.pes import BACKEND, compile_first, nodes_of, on_several_nodes

PES = [1, 3, *(pytest.param(n, marks=pytest.mark.sweep) for n in (2, 4, 8))]
WORLD, INVALID = shmem.TEAM_WORLD, shmem.TEAM_INVALID
ANY_NUMBER = BACKEND == "cpu"  # may be asked for in kernels: see the test of numbers below


@shmem.jit
def look(team, other, out, table):
    """What a kernel is told of a team; `table` is for all numbers there might be."""
    out[0], out[1] = shmem.team_my_pe(team), shmem.team_n_pes(team)
    for pe in range(table.size):
        table[pe] = -1
        if ANY_NUMBER or 0 <= pe - 2 < out[1]:
            table[pe] = shmem.team_translate_pe(team, pe - 2, other)


def told(team, other=WORLD):
    """What the host, and a kernel, are told of a team: the same; returned as one list."""
    out, table = np.zeros(2, int), np.zeros(shmem.n_pes() + 4, int)
    look[1, 1](team, other, out, table)
    on_host = [shmem.team_my_pe(team), shmem.team_n_pes(team)]
    on_host += [shmem.team_translate_pe(team, pe - 2, other) for pe in range(table.size)]
    assert on_host == [*out, *table]
    assert [team.my_pe, team.n_pes] == on_host[:2]
    assert [team.translate_pe(pe - 2, other) for pe in range(table.size)] == on_host[2:]
    assert all(type(answer) is int for answer in on_host)
    return on_host


def of_members(pes, n_pes, me, others=None):
    """What `told` has to say of the team of these PEs; `others` are those of the other team."""
    others = range(n_pes) if others is None else others
    if me not in pes:
        return [-1] * (n_pes + 6)
    numbers = [list(others).index(pe) if pe in others else -1 for pe in pes]
    return [list(pes).index(me), len(pes), -1, -1, *numbers, *[-1] * (n_pes - len(pes) + 2)]


@pytest.fixture(autouse=True, scope="module")
def compiled():
    ints = np.zeros(1, int)
    compile_first(look, WORLD, WORLD, ints, ints)
    compile_first(shmem.barrier, 0)
    compile_first(shmem.reduce, 0, ints, ints, "sum")


@pytest.mark.parametrize("n_pes", PES)
def test_predefined_teams(run_pes, n_pes):
    def body():
        shmem.init()
        me, size = shmem.my_pe(), n_pes // nodes_of(n_pes)
        node = range(me // size * size, me // size * size + size)
        teams = {WORLD: range(n_pes), shmem.TEAM_SHARED: node, shmem.TEAM_NODE: node}
        assert all(teams)
        assert not INVALID
        for team, pes in teams.items():
            for other, others in teams.items():
                assert told(team, other) == of_members(pes, n_pes, me, others)
            assert told(team, INVALID)[2:] == [-1] * (n_pes + 4)
            shmem.barrier(team)
            with pytest.raises(ArgumentError, match=f"team_destroy: {team!r} is predefined"):
                team.destroy()
        assert told(INVALID) == [-1] * (n_pes + 6)
        shmem.finalize()

    run_pes(body, n_pes)


def test_teams_are_values():
    for name in ("TEAM_INVALID", "TEAM_WORLD", "TEAM_SHARED", "TEAM_NODE"):
        assert repr(getattr(shmem, name)) == name
    assert repr(shmem.Team(7)) == "Team(7)"
    assert f"{shmem.Team(7)}" == str(shmem.Team(7)) == "7"


@pytest.mark.backwards
@pytest.mark.parametrize("n_pes", PES)
def test_all_strided_teams(run_pes, n_pes):
    """Every start, stride and size that there is, and those that there are not."""

    def body():
        shmem.init()
        me = shmem.my_pe()
        for start in range(-1, n_pes + 1):
            for stride in range(-n_pes, n_pes + 1):
                for size in range(n_pes + 2):
                    pes = [start + k * stride for k in range(size)]
                    shape = (start, stride, size)
                    if not pes or not set(pes) <= set(range(n_pes)) or len(set(pes)) < size:
                        with pytest.raises(ArgumentError, match=f"not {size} PEs of a parent of"):
                            shmem.team_split_strided(WORLD, *shape)
                        continue
                    team = shmem.team_split_strided(WORLD, *shape)
                    assert bool(team) == (me in pes)
                    assert team is INVALID or team
                    assert told(team) == of_members(pes, n_pes, me)
                    if team:
                        team.destroy()
        shmem.finalize()

    run_pes(body, n_pes)


@gpus.without_mps  # it reads where no memory is
@pytest.mark.xfail(
    BACKEND != "cpu",
    reason="nvshmem_team_translate_pe reads its table at any number below 0, and at the size",
    strict=True,
)
def test_numbers_that_no_pe_of_the_team_has(run_pes):
    @shmem.jit
    def translate(team, numbers, out):
        for i in range(numbers.size):
            out[i] = shmem.team_translate_pe(team, numbers[i], shmem.TEAM_WORLD)

    def body():
        shmem.init()
        team = shmem.team_split_strided(WORLD, 2, 1, 1)
        numbers = np.array([-(1 << 20), -1, 1, 2, 1 << 20])
        out = np.zeros(numbers.size, int)
        if team:
            translate[1, 1](team, numbers, out)
            assert out.tolist() == [-1] * numbers.size
        shmem.finalize()

    run_pes(body, 3)


@pytest.mark.parametrize("n_pes", PES)
def test_rows_and_columns(run_pes, n_pes):
    def body():
        shmem.init()
        me = shmem.my_pe()
        for xrange in range(1, n_pes + 2):
            row, column = shmem.team_split_2d(WORLD, xrange)
            in_row = [pe for pe in range(n_pes) if pe // xrange == me // xrange]
            in_column = [pe for pe in range(n_pes) if pe % xrange == me % xrange]
            assert told(row) == of_members(in_row, n_pes, me)
            assert told(column) == of_members(in_column, n_pes, me)
            assert told(row, column) == of_members(in_row, n_pes, me, in_column)
            assert told(column, row) == of_members(in_column, n_pes, me, in_row)
            shmem.team_destroy(column)
            shmem.team_destroy(row)
        for xrange in (0, -1):
            with pytest.raises(ArgumentError, match=f"a row must have 1 PE or more, not {xrange}"):
                shmem.team_split_2d(WORLD, xrange)
        shmem.finalize()

    run_pes(body, n_pes)


@pytest.mark.backwards
@pytest.mark.parametrize("n_pes", [1, 2, 3, pytest.param(4, marks=pytest.mark.sweep)])
def test_teams_of_lists(run_pes, n_pes):
    """Any PEs, in any order; nobody else calls, and those who do not meet make other teams."""

    def body():
        shmem.init()
        me, total = shmem.my_pe(), shmem.zeros(2, "int64")
        lists = [
            list(pes)
            for size in range(1, n_pes + 1)
            for pes in itertools.permutations(range(n_pes), size)
        ]
        for pes in lists:
            if me not in pes:
                continue
            team = shmem.team_init(pes)
            assert told(team) == of_members(pes, n_pes, me)
            assert told(WORLD, team)[4:-2] == [
                pes.index(pe) if pe in pes else -1 for pe in range(n_pes)
            ]
            total[0] = 10**me * (1 + pes.index(me))
            shmem.reduce(team, total[1:], total[:1], "sum")
            assert total[1] == sum(10**pe * (1 + k) for k, pe in enumerate(pes))
            half = team.split_strided(0, 2, (len(pes) + 1) // 2)
            assert told(half, team) == of_members(pes[::2], n_pes, me, pes)
            row, column = team.split_2d(2)
            at = pes.index(me)
            assert told(row) == of_members(pes[at // 2 * 2 :][:2], n_pes, me)
            assert told(column) == of_members(pes[at % 2 :: 2], n_pes, me)
            for made in filter(None, (half, row, column, team)):
                made.destroy()
        shmem.finalize()

    run_pes(body, n_pes)


@pytest.mark.checked
def test_lists_of_what_cannot_be_a_team(run_pes):
    def body():
        shmem.init()
        other = 1 - shmem.my_pe()
        for pes, message in (
            ([], r"the calling PE, \d, is not in the list \[\]"),
            ([other], r"the calling PE, \d, is not in the list .* only its members call"),
            ([0, 1, 0], r"PE 0 is in the list 2 times: \[0, 1, 0\]"),
            ([0, 2, 1], "there is no PE 2: PEs are 0 to 1"),
            ([0, -1], "there is no PE -1"),
            ([0, 1.5], r"pes\[1\] must be an integer"),
            (1, "pes must be a sequence of PEs, not 1"),
            ("01", "pes must be a sequence of PEs, not '01'"),
        ):
            with pytest.raises(ArgumentError, match=f"team_init: {message}"):
                shmem.team_init(pes)
        for pes in ((1, 0), range(2), np.array([0, 1])):
            with shmem.team_init(pes) as team:
                assert team.my_pe == list(pes).index(shmem.my_pe())
        shmem.finalize()

    run_pes(body, 2)


@pytest.mark.checked
def test_lists_that_differ(run_pes):
    """Both get the error, which says what each gave; afterwards they can make teams."""

    def body():
        shmem.init()
        with pytest.raises(shmem.CollectiveMismatch) as error:
            shmem.team_init([0, 1] if shmem.my_pe() == 0 else [1, 0])
        with shmem.team_init([1, 0]) as team:
            assert team.my_pe == 1 - shmem.my_pe()
        shmem.finalize()
        return str(error.value)

    for text in run_pes(body, 2):
        assert "PE 0: team_init([0, 1]); PE 1: team_init([1, 0])" in text


@pytest.mark.checked
def test_a_member_that_does_not_come(run_pes):
    def body():
        shmem.init()
        if shmem.my_pe() == 1:
            return None
        with pytest.raises(shmem.CollectiveMismatch) as error:
            shmem.team_init([2, 1, 0])
        return str(error.value)

    zero, one, two = run_pes(body, 3)
    assert one is None
    for text in (zero, two):
        assert "team_init([2, 1, 0]) waits for PE 1, which ended without making this call" in text


@pytest.mark.cpu_backend
def test_no_more_lists_than_teams(run_pes, monkeypatch):
    monkeypatch.setenv("GPUSHMEM_MAX_TEAMS", "4")

    def body():
        shmem.init()
        me = shmem.my_pe()
        pair = shmem.team_init([1, 0]) if me < 2 else INVALID
        with pytest.raises(TeamError, match="one of the PEs is in as many teams as there can be"):
            shmem.team_init([2, 1, 0])
        if pair:
            pair.destroy()
        team = shmem.team_init([2, 1, 0])
        answer = told(team)
        shmem.finalize()
        return answer

    assert run_pes(body, 3) == [of_members([2, 1, 0], 3, me) for me in range(3)]


@pytest.mark.backwards
@pytest.mark.parametrize("n_pes", [6, pytest.param(8, marks=pytest.mark.sweep)])
def test_splits_of_splits(run_pes, n_pes):
    """Numbers are those of the parent, which may be reversed, strided, and a row of another."""

    def body():
        shmem.init()
        me = shmem.my_pe()
        reverse = shmem.team_split_strided(WORLD, n_pes - 1, -1, n_pes)
        backwards = list(range(n_pes))[::-1]
        half = shmem.team_split_strided(reverse, 1, 2, 3)
        assert told(half) == of_members(backwards[1::2][:3], n_pes, me)
        if half:  # only its members call
            again = shmem.team_split_strided(half, 2, -1, 2)
            wanted = backwards[1::2][2:0:-1]
            assert told(again, reverse) == of_members(wanted, n_pes, me, backwards)
            assert told(reverse, again) == of_members(backwards, n_pes, me, wanted) or not again
        row, column = shmem.team_split_2d(reverse, 4)
        place = backwards.index(me)
        assert told(row) == of_members(backwards[place // 4 * 4 :][:4], n_pes, me)
        assert told(column) == of_members(backwards[place % 4 :: 4], n_pes, me)
        total = shmem.zeros(2, "int64")
        total[:] = 10**me
        for team in filter(None, (half, row, column)):
            shmem.reduce(team, total[1:], total[:1], "sum")
            pes = [team.translate_pe(k, WORLD) for k in range(team.n_pes)]
            assert total[1] == sum(10**pe for pe in pes)
        shmem.finalize()

    run_pes(body, n_pes)


def test_a_team_ends_with_its_block(run_pes):
    def body():
        shmem.init()
        with shmem.team_split_strided(WORLD, 0, 2, 2) as team:
            assert bool(team) == (shmem.my_pe() in (0, 2))
            if team:
                shmem.barrier(team)
        if team:
            with pytest.raises(TeamError, match=f"no team {int(team)}: it was destroyed"):
                shmem.barrier(team)
        with (
            pytest.raises(ZeroDivisionError),
            shmem.team_split_strided(WORLD, 0, 1, 3) as team,
        ):
            raise ZeroDivisionError  # the others may be anywhere: it stays
        shmem.barrier(team)
        shmem.finalize()

    run_pes(body, 3)


@shmem.jit
def use(kind, team, x):
    if kind == 0:
        shmem.barrier(team)
    elif kind == 1:
        x[0] = shmem.team_my_pe(team)
    elif kind == 2:
        x[0] = shmem.team_n_pes(team)
    elif kind == 3:
        x[0] = shmem.team_translate_pe(shmem.TEAM_WORLD, 0, team)
    elif kind == 4:
        x[0] = shmem.team_translate_pe(team, 0, shmem.TEAM_WORLD)
    elif kind == 5:
        shmem.reduce(team, x, x, "sum")
    else:
        m = shmem.multicast_array(x, team)
        m[0] = 1


@pytest.mark.checked
def test_teams_that_are_not_there(run_pes):
    """Destroyed, never made, of others only, not even a number that teams have."""
    compile_first(use, 0, WORLD, np.zeros(1, int))

    def body():
        shmem.init()
        x = shmem.zeros(1, "int64")
        gone = shmem.team_split_strided(WORLD, 0, 1, 2)
        gone.destroy()
        for team in (gone, shmem.Team(5), shmem.Team(255), shmem.Team(256), shmem.Team(-2)):
            message = f"there is no team {int(team)}: it was destroyed, or this PE is not in it"
            for ask in (
                lambda team=team: team.my_pe,
                lambda team=team: team.n_pes,
                lambda team=team: team.translate_pe(0, WORLD),
                lambda team=team: WORLD.translate_pe(0, team),
                lambda team=team: shmem.team_split_strided(team, 0, 1, 1),
                lambda team=team: shmem.team_split_2d(team, 1),
                team.destroy,
                lambda team=team: shmem.barrier(team),
                lambda team=team: shmem.reduce(team, x, x, "sum"),
                lambda team=team: shmem.multicast_array(x, team),
            ):
                with pytest.raises(TeamError, match=message):
                    ask()
            for kind in range(7):
                use[1, 1](kind, team, x)
                with pytest.raises(TeamError, match=rf"kernel use, .* in use: \w+: {message}"):
                    shmem.synchronize()
        for kind in (0, 5, 6):
            use[1, 1](kind, INVALID, x)
            with pytest.raises(TeamError, match=r"there is no team -1: .* TEAM_INVALID is -1"):
                shmem.synchronize()
        shmem.barrier_all()
        shmem.finalize()

    run_pes(body, 2)


@pytest.mark.checked
@pytest.mark.parametrize(
    ("calls", "texts"),
    [
        ([(0, 1, 2), (0, 1, 3), (0, 1, 2)], [r"\(0, 0, 1, 2\)", r"\(0, 0, 1, 3\)"]),
        ([(0, 1, 2), (1, 1, 2), (0, 1, 2)], [r"\(0, 0, 1, 2\)", r"\(0, 1, 1, 2\)"]),
        ([(0, 1, 2), 2, (0, 1, 2)], [r"\(0, 0, 1, 2\)", r"team_split_2d\(0, 2\)"]),
        ([3, 2, 3], [r"team_split_2d\(0, 3\)", r"team_split_2d\(0, 2\)"]),
        ([(0, 1, 2), None, None], [r"\(0, 0, 1, 2\)", "barrier_all"]),
    ],
)
def test_splits_that_differ(run_pes, calls, texts):
    """All PEs get the error, which says who does what; afterwards teams can be made."""

    def split(how):
        if how is None:
            return shmem.barrier_all()
        if isinstance(how, int):
            return shmem.team_split_2d(WORLD, how)
        return shmem.team_split_strided(WORLD, *how)

    def body():
        shmem.init()
        with pytest.raises(shmem.CollectiveMismatch) as error:
            split(calls[shmem.my_pe()])
        row, _ = shmem.team_split_2d(WORLD, 3)
        shmem.barrier(row)
        shmem.finalize()
        return str(error.value), int(row)

    for text, row in run_pes(body, 3):
        assert re.search(f"PE 0: [a-z0-9_]*{texts[0]}; PE 1: [a-z0-9_]*{texts[1]}; PE 2: ", text)
        assert row == 3, "a row of the table is lost"


@pytest.mark.checked
def test_destroying_different_teams(run_pes):
    """Who waits is told for whom; nothing else can be noticed."""

    def body():
        shmem.init()
        row, column = shmem.team_split_2d(WORLD, 2)
        try:
            (column if shmem.my_pe() % 2 else row).destroy()
        except shmem.CollectiveMismatch as error:
            return str(error)

    zero, one, two, three = run_pes(body, 4)
    assert one is three is None
    assert "team_destroy waits for PE 1, which ended without" in zero
    assert "team_destroy waits for PE 3, which ended without" in two


@pytest.mark.cpu_backend
@pytest.mark.parametrize("limit", [3, 5])
def test_as_many_teams_as_there_can_be(run_pes, monkeypatch, limit):
    """Also where only one PE has that many; then there is room again."""
    monkeypatch.setenv("GPUSHMEM_MAX_TEAMS", str(limit))

    def body():
        shmem.init()
        mine = [shmem.team_split_strided(WORLD, 1, 1, 1) for _ in range(limit - 3)]
        for _ in range(3):
            for split in (
                lambda: shmem.team_split_strided(WORLD, 0, 1, 2),
                lambda: shmem.team_split_2d(WORLD, 1),
            ):
                with pytest.raises(TeamError, match=rf"can be, {limit} .* GPUSHMEM_MAX_TEAMS"):
                    split()
        if mine:
            if mine[-1]:
                mine[-1].destroy()
            with pytest.raises(TeamError, match="GPUSHMEM_MAX_TEAMS"):  # there is room for one only
                shmem.team_split_2d(WORLD, 2)
            team = shmem.team_split_strided(WORLD, 2, -1, 3)
            assert told(team) == of_members([2, 1, 0], 3, shmem.my_pe())
        shmem.finalize()

    run_pes(body, 3)


@pytest.mark.cpu_backend
def test_too_few_teams_for_those_there_are(run_pes, monkeypatch):
    monkeypatch.setenv("GPUSHMEM_MAX_TEAMS", "2")

    def body():
        with pytest.raises(ArgumentError, match="GPUSHMEM_MAX_TEAMS must be 3 or more"):
            shmem.init()

    run_pes(body, 2)


@shmem.jit
def add_up(team, x, times):
    for _ in range(times):
        shmem.reduce(team, x, x, "sum")
        x[0] //= shmem.team_n_pes(team)


@pytest.mark.backwards
def test_hundreds_of_teams_one_after_the_other(run_pes):
    """Rows of the table are used again, as if nothing had been; kernels are waited for."""
    compile_first(add_up, WORLD, np.zeros(1, np.int64), 0)

    def body():
        shmem.init()
        rows = set()
        x, shapes = shmem.zeros(1, "int64"), [(0, 1, 3), (2, -1, 3), (0, 2, 2), (1, 1, 2)]
        kept = shmem.team_split_strided(WORLD, 0, 1, 3)
        for k in range(400):
            x[0] = k
            team = shmem.team_split_strided(WORLD, *shapes[k % 4])
            if team:
                rows.add(int(team))
                add_up[1, 1](team, x, k % 5)
                team.destroy()
            if k % 10 == 0:
                add_up[1, 1](kept, x, 3)
                add_up[1, 1](WORLD, x, 3)  # the next split is of this team
            assert x[0] == k
        shmem.finalize()
        return sorted(rows)

    assert run_pes(body, 3) == [[4]] * 3


def test_each_init_starts_afresh(run_pes):
    """Teams are gone, but for the predefined ones, which go on working."""

    def body():
        made = set()
        for k in range(6):
            shmem.init()
            x = shmem.full(1, k, dtype="int64")
            assert told(WORLD) == of_members(range(3), 3, shmem.my_pe())
            for row in (3, 4):
                with pytest.raises(TeamError):
                    shmem.barrier(shmem.Team(row))
            teams = [shmem.team_split_strided(WORLD, 0, 1, 3), shmem.TEAM_SHARED, WORLD]
            made.add(int(teams[0]))
            for team in [*teams, shmem.TEAM_NODE]:
                for times in range(k):
                    add_up[1, 1](team, x, times)
            assert x[0] == k
            if k % 2:
                shmem.team_split_2d(WORLD, 2)
            shmem.finalize()
        assert len(made) == 1

    run_pes(body, 3)


# --- memory of other PEs

NEAR = on_several_nodes("no PE's memory is another's to store to")


@shmem.jit
def through_peers(x, plane, got):
    """Write to the right, read from the left, by elements, rows and slices."""
    me, n = shmem.my_pe(), shmem.n_pes()
    right, left = shmem.peer_array(x, (me + 1) % n), shmem.peer_array(x, (me - 1) % n)
    t = cuda.threadIdx.x
    if t == 0:
        right[0] = 100 * me
        shmem.peer_array(plane, (me + 1) % n)[1, 2] = me
        shmem.peer_array(plane[2:], (me + 1) % n)[0, :] = 10 * me
        row = shmem.peer_array(plane, (me + 1) % n)[3]
        row[1:3] = 20 * me
    shmem.barrier_all_block()
    if t < 4:
        got[t] = left[t]
        got[4 + t] = shmem.peer_array(x[4:], (me - 1) % n)[t]


@pytest.mark.parametrize("n_pes", [1, pytest.param(3, marks=NEAR)])
def test_peer_arrays_in_kernels(run_pes, n_pes):
    compile_first(
        through_peers, np.zeros(1, int), np.zeros((1, 1), int), np.zeros(1, int), threads=32
    )

    def body():
        shmem.init()
        me = shmem.my_pe()
        x, plane = shmem.array(1000 * me + np.arange(8)), shmem.full((5, 4), -7, dtype="int64")
        got = np.full(9, -7)
        through_peers[1, 32](x, plane, got)
        result = x.numpy(), plane.numpy(), got
        shmem.finalize()
        return result

    for pe, (x, plane, got) in enumerate(run_pes(body, n_pes)):
        left, leftmost = (pe - 1) % n_pes, (pe - 2) % n_pes
        assert x.tolist() == [100 * left, *(1000 * pe + np.arange(1, 8))]
        wanted = np.full((5, 4), -7)
        wanted[1, 2], wanted[2], wanted[3, 1:3] = left, 10 * left, 20 * left
        np.testing.assert_array_equal(plane, wanted)
        assert got.tolist() == [100 * leftmost, *(1000 * left + np.arange(1, 8)), -7]


@pytest.mark.parametrize("n_pes", [1, pytest.param(3, marks=NEAR)])
def test_peer_arrays_on_the_host(run_pes, n_pes):
    def body():
        shmem.init()
        me = shmem.my_pe()
        plane = shmem.array(1000 * me + np.arange(12).reshape(3, 4))
        right = shmem.peer_array(plane, (me + 1) % n_pes)
        right_row = shmem.peer_array(plane[1:], (me + 1) % n_pes)
        assert right.shape == (3, 4)
        shmem.barrier_all()
        right[0, 1] = me
        right_row[0, 2:] = [10 * me, 20 * me]
        shmem.barrier_all()
        left = shmem.peer_array(plane, (me - 1) % n_pes).numpy()
        got = plane.numpy()
        shmem.free(plane)
        for use in (right.numpy, lambda: right_row[0], lambda: right.copy_from(0)):
            with pytest.raises(SymmetryError, match="was used after free"):
                use()
        shmem.finalize()
        return got, left

    results = run_pes(body, n_pes)
    for pe, (got, seen) in enumerate(results):
        wanted, left = 1000 * pe + np.arange(12).reshape(3, 4), (pe - 1) % n_pes
        wanted[0, 1], wanted[1, 2:] = left, (10 * left, 20 * left)
        np.testing.assert_array_equal(got, wanted)
        np.testing.assert_array_equal(seen, results[left][0])


@shmem.jit
def to_all(team, x, plane, values):
    mine, rows = shmem.multicast_array(x[1:], team), shmem.multicast_array(plane, team)
    if shmem.team_my_pe(team) == 0:
        mine[0] = values[0]
        mine[2:4] = values[1]
        rows[1, 2] = values[2]
        rows[2] = values[3]
        rows[0, :2] = values[4]
    shmem.barrier(team)


def after(values, x, plane):
    """Writes what `to_all` writes."""
    x[1], x[3:5], plane[1, 2], plane[2], plane[0, :2] = values[:5]


@NEAR
@pytest.mark.parametrize("on_host", [False, True])
def test_multicast_arrays_reach_the_team_and_nobody_else(run_pes, on_host):
    n_pes = 5
    compile_first(to_all, WORLD, np.zeros(1, int), np.zeros((1, 1), int), np.zeros(1, int))

    def body():
        shmem.init()
        x, plane = shmem.full(6, -7, dtype="int64"), shmem.full((4, 3), -7, dtype="int64")
        team = shmem.team_split_strided(WORLD, 4, -2, 2)
        values = 1000 * (shmem.my_pe() + 1) + np.arange(5)
        if team and on_host:
            mine, rows = shmem.multicast_array(x[1:], team), shmem.multicast_array(plane, team)
            assert rows.shape == (4, 3)
            if team.my_pe == 0:
                mine[0], mine[2:4] = values[0], values[1]
                rows[1, 2], rows[2], rows[0, :2] = values[2], values[3], values[4]
            shmem.barrier(team)
        elif team:
            to_all[1, 1](team, x, plane, values)
        shmem.barrier_all()
        result = x.numpy(), plane.numpy()
        shmem.finalize()
        return result

    for pe, got in enumerate(run_pes(body, n_pes)):
        wanted = np.full(6, -7), np.full((4, 3), -7)
        if pe in (4, 2):
            after(5000 + np.arange(5), *wanted)
        for array, right in zip(got, wanted, strict=True):
            np.testing.assert_array_equal(array, right)


@pytest.mark.checked
def test_what_peer_and_multicast_arrays_cannot_do(run_pes):
    def kernel_of(line):
        scope = {"shmem": shmem}
        exec(f"def kernel(x, k):\n    {line}", scope)
        return shmem.jit(scope["kernel"])

    refused = [
        ("x[0] = shmem.multicast_array(x, 0)[1]", "getitem"),
        ("shmem.multicast_array(k, 0)[0] = 1", "multicast_array: array must be an array, not int"),
        ("shmem.peer_array(k, 0)[0] = 1", "peer_array: array must be an array, not int64"),
    ]
    failing = [
        ("shmem.peer_array(x, k)[0] = 1", ArgumentError, "there is no PE 2: PEs are 0 to 1"),
        ("shmem.peer_array(x, -1)[0] = 1", ArgumentError, "there is no PE -1"),
    ]
    local = [
        ("shmem.peer_array(x, 0)[0] = 1", SymmetryError, "not on the symmetric heap"),
        ("m = shmem.multicast_array(x, 0)\n    m[0] = 1", SymmetryError, "not on the symmetric"),
    ]

    def body():
        shmem.init()
        x, here = shmem.zeros(4), shmem.to_device(np.zeros(4))
        for line, text in refused:
            with pytest.raises(TypingError, match=text):
                kernel_of(line)[1, 1](x, 2)
        for cases, array in ((failing, x), (local, here)):
            for line, kind, text in cases:
                with pytest.raises(kind, match=text):
                    kernel_of(line)[1, 1](array, 2)
                    shmem.synchronize()
        everywhere = shmem.multicast_array(x, WORLD)
        for bad, kind, text in (
            (lambda: shmem.peer_array(x, 2), ArgumentError, "there is no PE 2"),
            (lambda: shmem.peer_array(here, 0), SymmetryError, "not on the symmetric heap"),
            (lambda: shmem.multicast_array(here, WORLD), SymmetryError, "not on the symmetric"),
            (lambda: shmem.multicast_array(x, INVALID), TeamError, "there is no team -1"),
            (lambda: everywhere[0], TypeError, "not subscriptable"),
            (lambda: kernel_of("pass")[1, 1](everywhere, 0), ValueError, "MulticastArray"),
        ):
            with pytest.raises(kind, match=text):
                bad()
        shmem.free(x)
        with pytest.raises(SymmetryError, match="was used after free"):
            everywhere[0] = 1
        with pytest.raises(SymmetryError, match="was used after free"):
            everywhere.copy_from(1)
        shmem.finalize()

    run_pes(body, 2)


# --- teams as objects in kernels, and their methods


ALL = shmem.Team(0)  # a global of kernels


@shmem.jit(device=True)
def inner_facts(team):
    return team.my_pe, team.n_pes


@shmem.jit
def facts(team, pair, out):
    """What a kernel is told by attributes and methods, whichever way it has come by the team."""
    out[0], out[1] = team.my_pe, team.n_pes
    out[2], out[3] = inner_facts(team)
    out[4], out[5] = pair[1].my_pe, pair[0].n_pes
    out[6], out[7] = shmem.TEAM_WORLD.my_pe, ALL.n_pes
    out[8], out[9] = team.translate_pe(0, shmem.TEAM_WORLD), shmem.TEAM_WORLD.translate_pe(0, team)
    out[10], out[11] = team == shmem.TEAM_WORLD, team != shmem.TEAM_INVALID
    out[12] = 1 if team else 0
    out[13] = 1 if not team else 0
    out[14], out[15] = bool(team), int(team)


@pytest.mark.parametrize("n_pes", [1, 3])
def test_teams_in_kernels_are_as_on_the_host(run_pes, n_pes):
    ints = np.zeros(16, int)
    compile_first(facts, WORLD, (WORLD, WORLD), ints)

    def body():
        shmem.init()
        me = shmem.my_pe()
        odd = WORLD.split_strided(n_pes - 1, 1, 1)
        row, column = WORLD.split_2d(2)
        for team in (WORLD, INVALID, odd, row, column):
            out = np.full(16, -7)
            facts[1, 1](team, (row, column), out)
            wanted = [team.my_pe, team.n_pes] * 2 + [column.my_pe, row.n_pes, me, n_pes]
            wanted += [team.translate_pe(0, WORLD), WORLD.translate_pe(0, team)]
            wanted += [team == WORLD, team != INVALID, bool(team), not team, bool(team), int(team)]
            assert out.tolist() == [*map(int, wanted)], team
        shmem.finalize()

    run_pes(body, n_pes)


@shmem.jit
def meet_by_methods(team, x, seen):
    me, n = team.my_pe, team.n_pes
    right = team.translate_pe((me + 1) % n, shmem.TEAM_WORLD)
    shmem.p(x, 1000 + me, right)
    team.barrier()
    seen[0] = x[0]
    team.sync()


@pytest.mark.parametrize("n_pes", [1, 3])
def test_methods_that_wait(run_pes, n_pes):
    compile_first(meet_by_methods, WORLD, np.zeros(1, int), np.zeros(1, int))

    def body():
        shmem.init()
        me, stream = shmem.my_pe(), shmem.stream()
        x, seen = shmem.full(1, -1, "int64"), np.zeros(1, int)
        with WORLD.split_strided(0, 1, n_pes) as team:
            meet_by_methods[1, 1](team, x, seen)
            shmem.p(x, -1 - me, (me + 1) % n_pes)
            team.barrier()
            on_host = int(x.numpy()[0])
            team.sync()
            team.barrier(stream=stream)
            team.sync(stream=stream)
            stream.synchronize()
        shmem.finalize()
        return int(seen[0]), on_host

    lefts = [(pe - 1) % n_pes for pe in range(n_pes)]
    assert run_pes(body, n_pes) == [(1000 + left, -1 - left) for left in lefts]


@shmem.jit
def size_of(team, out):
    out[0] = shmem.team_n_pes(team)


@shmem.jit
def attribute_of(team, out):
    out[0] = team.n_pes


def test_numbers_of_teams_are_taken_by_operations_only(alone):
    out = np.zeros(1, int)
    for team in (0, WORLD, np.int32(0)):
        out[0] = -7
        size_of[1, 1](team, out)
        assert out[0] == 1
    for _ in range(2):
        attribute_of[1, 1](WORLD, out)
        with pytest.raises(TypingError, match="n_pes"):
            attribute_of[1, 1](0, out)
        with pytest.raises(TypingError, match="barrier and sync, but no nothing"):
            shmem.jit(lambda team: team.nothing)[1, 1](WORLD)
