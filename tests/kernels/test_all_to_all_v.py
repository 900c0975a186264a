"""Rows for each PE, as many as their sender says: all-to-all and all-gather, against NumPy."""

import numpy as np
import pytest
from gpushmem.kernels import AllGatherV, AllToAllV, Arena
from gpushmem.kernels.all_to_all_v import reference
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gpushmem as shmem
from tests.pes import lateness, repeated, sendable, to_send, whole_warps

# The second dtype: others are compiled for sweeps only.
PES = (
    (1, "int64"), (3, "int64"),
    *(pytest.param(n, "float16", marks=pytest.mark.sweep) for n in (1, 2, 3, 5, 8)),
)  # fmt: skip
KINDS, WAYS = (AllToAllV, AllGatherV), ("direct", "put")
POISON = 77


def numbers(kind, n, most, seed):
    """How many rows each PE has for each, as (n, n): of an all-gather a row has one number."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, most + 1, (n, n)) * rng.integers(0, 2, (n, n))
    return counts if kind is AllToAllV else np.repeat(counts[:, :1], n, axis=1)


def rows_of(kind, counts, pe, row, dtype, call=0):
    """The rows of a PE: their numbers name it."""
    size = counts[pe].sum() if kind is AllToAllV else counts[pe][0]
    each = np.arange(size * np.prod(row, dtype=int)) % 89 + 100 * (pe % 19) + 7 * call
    return (each % 2039).astype(dtype).reshape(size, *row)


def wanted(kind, arrays, counts, me):
    """What PE `me` gets."""
    return reference(arrays, counts, me) if kind is AllToAllV else np.concatenate(arrays)


def room(algorithm, rows, row=(), dtype="int64"):
    """Poisoned memory to get so many rows, the same on all PEs."""
    made = shmem.full((rows, *row), POISON, dtype)
    return made if algorithm == "put" else shmem.to_device(made.numpy())


def called(plan, x, counts, out, received, **options):
    """Call it with this PE's numbers, on the device."""
    given = counts if isinstance(plan, AllToAllV) else counts[:1]
    plan(x, shmem.to_device(given), out=out, received=received, **options)


@pytest.mark.parametrize(("n_pes", "other"), PES)
@pytest.mark.parametrize("algorithm", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_results_are_numpys(run_pes, n_pes, other, kind, algorithm):
    """Of several rows and pieces, blocks that share them, and boxes of one row."""

    def body():
        shmem.init()
        me, n = shmem.my_pe(), shmem.n_pes()
        cases = [("int64", (), 100, 1, 40), (other, (3, 2), 33, 2, 3), ("int64", (), 64, 3, 1)]
        for k, (dtype, row, most, blocks, piece) in enumerate(cases):
            plan = kind(
                rows=100, row=row, dtype=dtype, algorithm=algorithm, blocks=blocks,
                threads=whole_warps(4),
            )  # fmt: skip
            plan.piece = piece
            received = shmem.device_array(n, "int64")
            for call in range(3):
                counts = numbers(kind, n, most * (call < 2), [k, call])
                arrays = [rows_of(kind, counts, pe, row, dtype, call) for pe in range(n)]
                total = counts[:, me].sum()
                out = room(algorithm, counts.sum(axis=0).max() + 2, row, dtype)
                called(plan, to_send(arrays[me]), counts[me], out, received)
                np.testing.assert_array_equal(received.numpy(), counts[:, me])
                got = out.numpy()
                np.testing.assert_array_equal(got[:total], wanted(kind, arrays, counts, me))
                assert (got[total:] == POISON).all()
                assert plan.dropped() == 0
            plan.free()
        shmem.finalize()

    run_pes(body, n_pes)


@pytest.mark.parametrize("algorithm", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_many_calls_without_a_barrier(run_pes, kind, algorithm):
    """Some PEs are late now and then; pairs have different numbers of rounds."""
    calls = repeated(100, if_checked=5)

    def body():
        shmem.init()
        me, n = shmem.my_pe(), shmem.n_pes()
        plan = kind(rows=64, dtype="int64", algorithm=algorithm, blocks=2, threads=whole_warps(4))
        plan.piece = 16
        received, late = shmem.device_array(n, "int64"), lateness(0.05, 0.01)
        out = room(algorithm, 150 * n)
        for call in range(calls):
            counts = numbers(kind, n, 150, call)
            arrays = [rows_of(kind, counts, pe, (), "int64", call) for pe in range(n)]
            called(plan, to_send(arrays[me]), counts[me], out, received)
            late()
            got = out.numpy()[: counts[:, me].sum()]
            np.testing.assert_array_equal(got, wanted(kind, arrays, counts, me), f"call {call}")
        shmem.finalize()

    run_pes(body, 5)


@pytest.mark.parametrize("algorithm", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_what_has_no_room_is_not_written_but_told(run_pes, kind, algorithm):
    """PE p sends p + 5 rows to each, the last PE to all more than it has; there is room for 8."""

    def body():
        shmem.init()
        me, n = shmem.my_pe(), shmem.n_pes()
        options = {"rows": 8, "dtype": "int64", "blocks": 1, "threads": whole_warps(4)}
        with kind(algorithm=algorithm, **options) as plan:
            plan.piece = 3
            counts = np.repeat(np.arange(n)[:, None] + 5, n, axis=1)
            arrays = [rows_of(kind, counts, pe, (), "int64") for pe in range(n)]
            counts[n - 1] += 2  # all together, to the last one: where its rows end
            memory, received = room(algorithm, 20), shmem.device_array(n, "int64")
            called(plan, to_send(arrays[me]), counts[me], memory[:8], received)
            found = memory.numpy(), received.numpy(), plan.dropped()
            if algorithm == "put":
                with pytest.raises(shmem.SymmetryError, match="out must be a symmetric array"):
                    called(plan, memory, counts[me], shmem.to_device(memory.numpy()), received)
        with pytest.raises(shmem.ArgumentError, match=r"counts has shape \(9,\)"):
            plan(memory, shmem.device_array(9, "int64"), out=memory, received=received)
        with pytest.raises(shmem.ArgumentError, match="x has shape"):
            called(plan, shmem.device_array(3, "float32"), counts[me], memory, received)
        with pytest.raises(shmem.ArgumentError, match="rows is -1"):
            kind(rows=-1, dtype="int64")
        shmem.finalize()
        return found, arrays

    n = 3
    for me, ((memory, received, dropped), arrays) in enumerate(run_pes(body, n)):
        if kind is AllToAllV:  # the last one has 21 rows, for PEs that should get 9 each
            sent, short = [5, 6, (9, 9, 3)[me]], 6 if me == 2 else 0
            parts = [arrays[p][[5, 6, 9][p] * me :][: sent[p]] for p in range(n)]
        else:
            sent, short = [5, 6, 7], 2 * n if me == 2 else 0
            parts = arrays
        np.testing.assert_array_equal(received, sent)
        np.testing.assert_array_equal(memory[:8], np.concatenate(parts)[:8])
        assert (memory[8:] == POISON).all()
        assert dropped == sum(sent) - 8 + short


def test_what_is_sent_is_the_formula(run_pes):
    """Boxes are painted; each pair fills no box twice."""

    def body():
        shmem.init()
        me, n, paint = shmem.my_pe(), shmem.n_pes(), -5
        plan = AllToAllV(rows=96, row=(4,), dtype="int64", blocks=2, threads=whole_warps(4))
        (box,) = plan.inboxes
        box.copy_from(paint)
        counts = np.arange(n * n).reshape(n, n) % 7 * 5
        x = to_send(np.ones((counts[me].sum(), 4), "int64"))
        out, received = shmem.device_array((200, 4), "int64"), shmem.device_array(n, "int64")
        shmem.barrier_all()
        called(plan, x, counts[me], out, received)
        shmem.barrier_all()
        filled = 8 * int((box.numpy() != paint).sum())
        says = plan.sends(counts[me].tolist(), counts[:, me].tolist())
        text = plan.describe()
        shmem.finalize()
        return says, filled, text

    results = run_pes(body, 3)
    assert sum(says[0] for says, _, _ in results) == sum(filled for _, filled, _ in results)
    assert all(says[1] == 4 for says, _, _ in results)
    assert "0 bytes in 4 messages" in results[0][2]


def test_in_two_teams_at_once_and_in_an_arena(run_pes):
    """The even PEs, and the odd ones."""

    def body():
        shmem.init()
        me, n = shmem.my_pe(), shmem.n_pes()
        arena, odd = Arena(1 << 20), me % 2
        team = [
            shmem.team_split_strided(shmem.TEAM_WORLD, start, 2, len(range(start, n, 2)))
            for start in (0, 1)
        ][odd]
        with arena.plans():
            plan = AllToAllV(rows=9, dtype="int64", team=team, blocks=1, threads=whole_warps(4))
        m = team.n_pes
        for call in range(5):
            counts = numbers(AllToAllV, m, 9, [odd, call])
            arrays = [1000 * odd + rows_of(AllToAllV, counts, pe, (), "int64") for pe in range(m)]
            out, received = shmem.device_array(50, "int64"), shmem.device_array(m, "int64")
            called(plan, to_send(arrays[me // 2]), counts[me // 2], out, received)
            got = out.numpy()[: received.numpy().sum()]
            np.testing.assert_array_equal(got, reference(arrays, counts, me // 2))
        plan.free()
        arena.free()
        shmem.finalize()

    run_pes(body, 5)


@pytest.mark.cpu_backend  # on GPUs CUDA captures
def test_in_a_graph_with_other_numbers_each_time(run_pes):
    def body():
        shmem.init()
        me, n, stream = shmem.my_pe(), shmem.n_pes(), shmem.stream()
        plan = AllToAllV(rows=8, dtype="int64", threads=whole_warps(4))
        x, counts = sendable(shmem.device_array(9 * n, "int64")), shmem.device_array(n, "int64")
        out, received = shmem.device_array(9 * n, "int64"), shmem.device_array(n, "int64")
        counts.copy_from(0)
        plan(x, counts, out=out, received=received, stream=stream)
        with shmem.capture(stream) as graph:
            plan(x, counts, out=out, received=received, stream=stream)
        for call in range(4):
            all_counts = numbers(AllToAllV, n, 9, call)
            arrays = [rows_of(AllToAllV, all_counts, pe, (), "int64", call) for pe in range(n)]
            x.copy_from(np.resize(np.append(arrays[me], 0), 9 * n))
            counts.copy_from(all_counts[me])
            graph.launch(stream)
            got = out.numpy()[: received.numpy().sum()]
            np.testing.assert_array_equal(got, reference(arrays, all_counts, me))
        shmem.finalize()

    run_pes(body, 3)


@pytest.mark.sweep
@given(st.data())
@settings(
    max_examples=30, deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],  # each example is a job of its own
)  # fmt: skip
def test_any_numbers_in_any_blocks(run_pes, data):
    n = data.draw(st.sampled_from((1, 2, 3, 5)), "PEs")
    counts = data.draw(
        st.lists(st.lists(st.integers(0, 70), min_size=n, max_size=n), min_size=n, max_size=n)
    )
    blocks, piece = data.draw(st.tuples(st.integers(1, 3), st.integers(1, 40)), "blocks, piece")

    def body():
        shmem.init()
        me = shmem.my_pe()
        arrays = [rows_of(AllToAllV, np.array(counts), pe, (), "int64") for pe in range(n)]
        plan = AllToAllV(rows=70, dtype="int64", blocks=blocks, threads=whole_warps(4))
        plan.piece = min(plan.piece, piece)
        out, received = shmem.device_array(70 * n, "int64"), shmem.device_array(n, "int64")
        for _ in range(2):
            called(plan, to_send(arrays[me]), np.array(counts[me]), out, received)
        got = out.numpy()[: received.numpy().sum()]
        np.testing.assert_array_equal(got, reference(arrays, counts, me))
        shmem.finalize()

    run_pes(body, n)
