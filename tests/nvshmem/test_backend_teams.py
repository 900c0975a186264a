"""Teams of the nvshmem backend, on the emulated NVSHMEM."""

import numpy as np
import pytest

import gpushmem as shmem
from gpushmem import TEAM_INVALID, TEAM_NODE, TEAM_SHARED, TEAM_WORLD
from gpushmem.errors import ArgumentError, TeamError
from tests.nvshmem import emulation, host
from tests.nvshmem.emulation import driver

pytestmark = pytest.mark.skipif(emulation.missing() is not None, reason=str(emulation.missing()))


def members(team):
    return [team.translate_pe(k, TEAM_WORLD) for k in range(team.n_pes)]


@host.in_pes(1, 2, 3)
def test_strided(me, n):
    cases = [(0, 1, n), (n - 1, 1, 1), (0, 2, (n + 1) // 2), (0, 0, 1)]
    for start, stride, size in cases:
        team = shmem.team_split_strided(TEAM_WORLD, start, stride, size)
        want = [start + k * stride for k in range(size)]
        assert bool(team) == (me in want)
        if not team:
            assert (team, team.my_pe, team.n_pes) == (TEAM_INVALID, -1, -1)
            assert team.translate_pe(0, TEAM_WORLD) == -1
            continue
        assert members(team) == want
        assert team.my_pe == want.index(me)
        assert TEAM_WORLD.translate_pe(me, team) == team.my_pe
        assert team.translate_pe(size, TEAM_WORLD) == -1
        other = next((pe for pe in range(n) if pe not in want), None)
        assert other is None or TEAM_WORLD.translate_pe(other, team) == -1
        inner = shmem.team_split_strided(team, size - 1, 1, 1)
        assert bool(inner) == (me == want[-1])
        assert not inner or members(inner) == [want[-1]]
        if inner:
            inner.destroy()
        team.destroy()
        with pytest.raises(TeamError, match=f"there is no team {int(team)}: it was destroyed, or"):
            team.n_pes  # noqa: B018
        with pytest.raises(TeamError, match="no team"):
            team.destroy()
    assert repr(TEAM_SHARED) == "TEAM_SHARED"
    assert [members(t) for t in (TEAM_WORLD, TEAM_SHARED, TEAM_NODE)] == [list(range(n))] * 3


@host.in_pes(1, 2, 3)
def test_of_lists(me, n):
    own = shmem.full(n + 1, 1000 * me)
    for pes in (list(range(n))[::-1], [n - 1], [1, 2, 0] if n == 3 else [0]):
        for _ in range(2):  # NVSHMEM wants another id each time
            if me not in pes:
                continue
            team = shmem.team_init(pes)
            assert (members(team), team.my_pe) == (pes, pes.index(me))
            x, y = own[:1], own[1 : 1 + len(pes)]
            shmem.fcollect(team, y, x)
            assert y.numpy().tolist() == [1000 * pe for pe in pes]
            half = team.split_strided(0, 2, (len(pes) + 1) // 2)
            assert not half or members(half) == pes[::2]
            row, column = team.split_2d(2)
            at = pes.index(me)
            assert members(row) == pes[at // 2 * 2 :][:2]
            assert members(column) == pes[at % 2 :: 2]
            for made in filter(None, (half, row, column, team)):
                made.destroy()
    for pes in ([0, 0], [n], [pe for pe in range(n) if pe != me]):
        with pytest.raises(ArgumentError, match="team_init: "):
            shmem.team_init(pes)


@host.in_pes(2)
def test_a_negative_stride_is_not_there(me, n):
    with pytest.raises(ArgumentError, match="no teams with a stride below 1, such as -1"):
        shmem.team_split_strided(TEAM_WORLD, n - 1, -1, n)


@host.job
def rows_and_columns(me, n, width):
    row, column = shmem.team_split_2d(TEAM_WORLD, width)
    rows = [list(range(n))[k : k + width] for k in range(0, n, width)]
    assert members(row) == rows[me // width]
    assert members(column) == list(range(n))[me % width :: width]
    assert (row.my_pe, column.my_pe) == (me % width, me // width)
    x, y = shmem.full(2, 1000 * me), shmem.full(2 * n, -7)
    for team in (row, column):
        y.copy_from(-7)
        shmem.barrier(team)
        shmem.fcollect(team, y, x)
        want = np.repeat([1000 * pe for pe in members(team)], 2)
        assert y.numpy()[: want.size].tolist() == want.tolist()
        assert (y.numpy()[want.size :] == -7).all()
        m = shmem.multicast_array(x, team)
        assert f"{team.n_pes} PEs" in repr(m)
    shmem.barrier_all()


@pytest.mark.parametrize(("n", "width"), [(1, 1), (3, 2), (2, 5), (5, 3)])
def test_rows_and_columns(n, width):
    host.run(n, rows_and_columns, width)


def as_many_as_there_can_be():
    for _ in range(2):
        _, n = host.init()
        teams = []
        with pytest.raises(TeamError, match=r"keeps 12 with .* set NVSHMEM_MAX_TEAMS"):
            while True:
                teams.append(shmem.team_split_strided(TEAM_WORLD, 0, 1, n))
        assert len(set(teams)) == len(teams) > 3
        teams.pop().destroy()
        with shmem.team_split_strided(TEAM_WORLD, 0, 1, n) as last:
            assert last.n_pes == n
        teams.append(shmem.team_split_strided(TEAM_WORLD, 0, 1, 1))
        shmem.finalize()  # with those that are left
    return len(teams)


def test_as_many_teams_as_there_can_be():
    host.run(2, as_many_as_there_can_be, NVSHMEM_MAX_TEAMS=12)


@host.in_pes(1)
def test_teams_wait_for_kernels(me, n):
    """Making and ending a team waits for this PE's kernels."""
    stream = shmem.stream()
    team = shmem.team_split_strided(TEAM_WORLD, 0, 1, n)
    driver.hold(stream)
    shmem.set_timeout(0.1)
    for call in (
        lambda: shmem.team_split_strided(TEAM_WORLD, 0, 1, n),
        lambda: shmem.team_split_2d(TEAM_WORLD, 1),
        team.destroy,
    ):
        with pytest.raises(shmem.WaitTimeout):
            call()
    driver.let_go(stream)
    shmem.set_timeout(None)
    assert team.n_pes == n
    team.destroy()
