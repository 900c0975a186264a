"""Two levels, of PEs that behave as on several nodes: all-reduces, rows; against NumPy."""

import numpy as np
import pytest
from gpushmem.kernels import AllReduce, AllReduceRMSNorm, AllToAllV, Arena
from gpushmem.kernels.all_to_all_v import reference

import gpushmem as shmem
from tests import pes
from tests.pes import lateness, repeated, to_send, whole_warps

PES = [(4, 2), (6, 3), *(pytest.param(*p, marks=pytest.mark.sweep) for p in ((6, 2), (3, 3)))]
PAINT = np.float32(-1e30)


def parts_of(n, size):
    return [np.random.default_rng(pe).normal(size=size).astype("float32") for pe in range(n)]


def in_order(parts, per_node):
    """The sum of all nodes' sums, each in order, as float32."""
    wide = np.array(parts).reshape(len(parts) // per_node, per_node, parts[0].size)
    return wide.sum(axis=1, dtype="float32").sum(axis=0, dtype="float32")


@pytest.mark.parametrize(("n_pes", "n_nodes"), PES)
def test_sums_bits_and_what_is_sent(run_pes, on_nodes, n_pes, n_nodes):
    """Boxes are painted, as in test_all_reduce; the second call is in the other slot."""
    on_nodes(n_nodes)

    def body():
        shmem.init()
        n, found = shmem.n_pes(), []
        per_node = shmem.TEAM_SHARED.n_pes
        for size, blocks in ((0, 1), (33, 2), (96 * n, 1), (4001, 3)):
            plan = AllReduce(
                size=size, dtype="float32", algorithm="two_level", blocks=blocks,
                threads=whole_warps(4),
            )  # fmt: skip
            for box in plan.inboxes:
                box.view("float32").copy_from(PAINT)
            shmem.barrier_all()
            for call in range(3):
                parts = [part + call for part in parts_of(n, size)]
                x = to_send(parts[shmem.my_pe()])
                plan(x)
                np.testing.assert_allclose(x.numpy(), in_order(parts, per_node), 0, 1e-5)
                found.append(x.numpy().tobytes())
                if call == 0 and size == 96 * n:
                    shmem.barrier_all()
                    boxes = [box.view("float32").numpy() for box in plan.inboxes]
                    filled = sum(np.count_nonzero(box != PAINT) for box in boxes) * 4
                    shmem.barrier_all()
            if size == 96 * n:
                sent = plan.sends()[0], filled
            plan.free()
        assert shmem.heap_stats().used == 0
        shmem.finalize()
        return found, sent, per_node

    results = run_pes(body, n_pes)
    assert all(found == results[0][0] for found, _, _ in results)
    for _, (says, filled), m in results:
        nodes, part = n_pes // m, 4 * 96 * n_pes // m  # bytes
        across = part if nodes <= 2 else (nodes - 1) * part  # one shot: parts are small
        assert says == 2 * (m - 1) * part + across * (nodes > 1)
        # Besides, what PEs copy to their own boxes, where they add up others than two.
        assert filled == says + part * (m != 2) + part * (nodes != 2)


def test_many_calls_without_a_barrier(run_pes, on_nodes):
    """Pieces are small, so that a call is several epochs; some PEs are late now and then."""
    on_nodes(2)
    calls = repeated(100, if_checked=5)

    def body():
        shmem.init()
        me, n, size = shmem.my_pe(), shmem.n_pes(), 700
        plan = AllReduce(
            size=size, dtype="float32", algorithm="two_level", blocks=2, threads=whole_warps(4)
        )
        for level in plan._levels._plans:
            level.piece = 32
        x, late = to_send(np.zeros(size, "float32")), lateness(0.05, 0.01)
        for call in range(calls):
            x.copy_from(np.arange(size) + 100_000 * me + call)
            late()
            plan(x)
            wanted = n * (np.arange(size) + call) + 50_000 * n * (n - 1)
            np.testing.assert_array_equal(x.numpy(), wanted, f"call {call}")
        shmem.finalize()

    run_pes(body, 6)


def test_which_algorithm_is_chosen(run_pes, on_nodes):
    """For large arrays of PEs on several nodes with several each; teams need an arena."""
    on_nodes(2)

    def body():
        shmem.init()
        me, size, found = shmem.my_pe(), 20_000, []
        for n in (100, size):
            with AllReduce(size=n, dtype="float32") as plan:
                found.append(plan.algorithm)
        three = shmem.team_split_strided(shmem.TEAM_WORLD, 0, 1, 3)  # 2 on one node, 1 on the other
        with pytest.raises(shmem.ArgumentError, match="'two_level' is for nodes with as many PEs"):
            AllReduce(size=size, dtype="float32", team=three, algorithm="two_level")
        arena = Arena(1 << 20)
        four = shmem.team_split_strided(shmem.TEAM_WORLD, 3, -1, 4)  # from the last to the first
        with arena.plans():
            if three:
                found.append(AllReduce(size=size, dtype="float32", team=three).algorithm)
            plan = AllReduce(size=size, dtype="float32", team=four)
        found.append(plan.algorithm)
        x = to_send(np.full(size, me, "float32"))
        plan(x)
        assert (x.numpy() == 6).all()
        plan.free()
        arena.free()
        with pytest.raises(shmem.ArgumentError, match="no algorithm 'two_level'"):
            AllReduceRMSNorm(tokens=1, hidden=1, dtype="float32", algorithm="two_level")
        with pytest.raises(shmem.HeapExhausted):
            AllReduce(size=1 << 40, dtype="float64", algorithm="two_level", blocks=65535)
        assert shmem.heap_stats().used == 0
        shmem.finalize()
        return found

    large = "two_shot" if pes.ON_GPUS else "two_level"
    some = ["one_shot", large, "two_shot", large]
    assert run_pes(body, 4) == [some, some, some, [*some[:2], large]]


@pytest.mark.cpu_backend  # on GPUs CUDA captures
def test_in_a_graph(run_pes, on_nodes):
    on_nodes(2)

    def body():
        shmem.init()
        x, stream = to_send(np.ones(1000, "float32")), shmem.stream()
        options = {"algorithm": "two_level", "threads": whole_warps(4)}
        with AllReduce(size=1000, dtype="float32", **options) as plan:
            plan(x, stream=stream)
            with shmem.capture(stream) as graph:
                plan(x, stream=stream)
            for _ in range(3):
                graph.launch(stream)
            result = x.numpy()
        shmem.finalize()
        return (result == 4**4).all()

    assert all(run_pes(body, 4))


def counts_of(n, most, call):
    """How many rows each has for each; some have none."""
    rng = np.random.default_rng([n, call])
    return rng.integers(0, most + 1, (n, n)) * rng.integers(0, 2, (n, n))


@pytest.mark.parametrize(("n_pes", "n_nodes"), PES)
def test_rows_arrive_in_the_order_of_their_sources(run_pes, on_nodes, n_pes, n_nodes):
    """In many calls, some PEs late now and then; at last with too few rows, and too little room."""
    on_nodes(n_nodes)
    calls = repeated(30, if_checked=3)

    def body():
        shmem.init()
        me, n, most, late = shmem.my_pe(), shmem.n_pes(), 40, lateness(0.05, 0.01)
        plan = AllToAllV(
            rows=most * n, row=(2,), dtype="int64", algorithm="two_level", blocks=2,
            threads=whole_warps(4),
        )  # fmt: skip
        out, received = shmem.device_array((most * n, 2), "int64"), shmem.device_array(n, "int64")
        for call in range(calls):
            counts = counts_of(n, most, call)
            arrays = [
                1000 * p + np.arange(2 * c.sum()).reshape(-1, 2) for p, c in enumerate(counts)
            ]
            late()
            plan(to_send(arrays[me]), shmem.to_device(counts[me]), out=out, received=received)
            np.testing.assert_array_equal(received.numpy(), counts[:, me])
            got = out.numpy()[: counts[:, me].sum()]
            np.testing.assert_array_equal(got, reference(arrays, counts, me), f"call {call}")
            assert plan.dropped() == 0
        x, counts = to_send(np.ones((n, 2), "int64")), shmem.to_device(np.full(n, 2))
        plan(x, counts, out=out[:1], received=received)
        found = plan.dropped(), received.numpy().sum()
        with pytest.raises(shmem.ArgumentError, match="in two levels the plan is for"):
            plan(shmem.device_array((most * n + 1, 2), "int64"), counts, out=out, received=received)
        with pytest.raises(shmem.ArgumentError, match="no algorithm 'ring'; there are direct"):
            AllToAllV(rows=1, dtype="int8", algorithm="ring")
        plan.free()
        assert shmem.heap_stats().used == 0
        shmem.finalize()
        return found

    results = run_pes(body, n_pes)
    assert sum(came for _, came in results) == n_pes * n_pes
    assert all(dropped == n_pes + came - 1 for dropped, came in results if came)
