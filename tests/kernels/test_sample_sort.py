"""Sorting over PEs, by kernels and by the library, against NumPy."""

import numpy as np
import pytest
from gpushmem.kernels import SampleSort
from gpushmem.kernels.sample_sort import METHODS, OFFSETS, reference
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gpushmem as shmem
from tests.pes import ON_GPUS, lateness, repeated, to_send

PES = (1, 3, *(pytest.param(n, marks=pytest.mark.sweep) for n in (2, 5, 8)))
POISON = 77
RANGES = {  # of keys: from and to, for a dtype's limits
    "all": lambda info: (info.min, info.max),
    "few": lambda info: (7, 9),
    "one": lambda info: (5, 5),
}
by_methods = pytest.mark.parametrize("method", METHODS[: 1 if ON_GPUS else 2])


def keys_of(dtype, kind, pe, size, call=0):
    low, high = RANGES[kind](np.iinfo(dtype))
    return np.random.default_rng([pe, call]).integers(low, high, size, dtype, endpoint=True)


def gathered(array, total):
    """The first `total` elements of all PEs' arrays, one behind the other, on each PE."""
    n, mine = shmem.n_pes(), shmem.empty(array.size, array.dtype)
    mine.copy_from(array.numpy())
    sizes, size = shmem.empty(n, "int64"), shmem.full(1, total, "int64")
    shmem.fcollect(shmem.TEAM_WORLD, sizes, size)
    found = shmem.empty(int(sizes.numpy().sum()), array.dtype)
    shmem.collect(shmem.TEAM_WORLD, found, mine[:total])
    return found.numpy(), sizes.numpy()


def check(plan, keys, values=None):
    """Sort, with a value for each key if there are some; returns how many keys each PE has."""
    me, n = shmem.my_pe(), shmem.n_pes()
    out = shmem.to_device(np.full(plan.capacity, POISON, plan.dtype))
    received, more = shmem.device_array(n, "int64"), {}
    if values is not None:
        more["values"] = shmem.to_device(values[me])
        more["out_values"] = shmem.device_array(plan.capacity, values[0].dtype)
    mine = to_send(keys[me])
    plan(mine, out=out, received=received, **more)
    total = int(received.numpy().sum())
    assert plan.dropped() == 0
    assert (out.numpy()[total:] == POISON).all()
    np.testing.assert_array_equal(mine.numpy(), keys[me])
    found, sizes = gathered(out, total)
    wanted = reference(keys, values)
    np.testing.assert_array_equal(found, wanted[0])
    if values is not None:
        np.testing.assert_array_equal(gathered(more["out_values"], total)[0], wanted[1])
    return sizes


@pytest.mark.parametrize("n_pes", PES)
@by_methods
def test_all_pes_keys_are_in_order(run_pes, n_pes, method):
    """PEs have different numbers of keys, some none; equal ones are divided evenly."""
    size = 700

    def body():
        shmem.init()
        n = shmem.n_pes()
        with SampleSort(size=size, dtype="int64", method=method) as plan:
            for call, kind in enumerate(RANGES):
                keys = [keys_of("int64", kind, pe, size * (pe % 3) // 2, call) for pe in range(n)]
                check(plan, keys)
                sizes = check(plan, [keys_of("int64", kind, pe, size, call) for pe in range(n)])
                assert abs(sizes - size).max() <= (n + 1) * plan.stride
        shmem.finalize()

    run_pes(body, n_pes)


@pytest.mark.sweep
@pytest.mark.parametrize("dtype", OFFSETS)
@by_methods
def test_keys_of_all_dtypes_with_values(run_pes, dtype, method):
    """The values of equal keys are in the order of their PEs and places."""

    def body():
        shmem.init()
        n = shmem.n_pes()
        with SampleSort(size=300, dtype=dtype, values="float64", method=method) as plan:
            for kind in RANGES:
                keys = [keys_of(dtype, kind, pe, 300 - 70 * pe) for pe in range(n)]
                check(plan, keys, [1000.0 * pe + np.arange(x.size) for pe, x in enumerate(keys)])
        shmem.finalize()

    run_pes(body, 3)


@by_methods
def test_pairs_of_several_blocks_in_two_teams(run_pes, method):
    """Many calls, some PEs late now and then; the even PEs, and the odd ones."""
    calls, size = repeated(30, if_checked=2), repeated(200, if_checked=40)

    def body():
        shmem.init()
        me = shmem.my_pe()
        teams = [shmem.team_split_strided(shmem.TEAM_WORLD, start, 2, 2) for start in (0, 1)]
        team, late = teams[me % 2], lateness(0.1, 0.01)
        options = {"values": "int64", "method": method, "blocks": 2, "threads": 4}
        plan = SampleSort(size=size, dtype="int64", team=team, **options)
        out, out_values = (shmem.device_array(plan.capacity, kind) for kind in ("int64", "int64"))
        received = shmem.device_array(2, "int64")
        for call in range(calls):
            keys = [keys_of("int64", "few" if call % 2 else "all", pe, size, call) for pe in (0, 1)]
            values = [1000 * pe + np.arange(size) for pe in (0, 1)]
            given = to_send(keys[me // 2]), to_send(values[me // 2])
            plan(given[0], values=given[1], out=out, out_values=out_values, received=received)
            late()
            total, wanted = received.numpy().sum(), reference(keys, values)
            part = slice(None, total) if me < 2 else slice(2 * size - total, None)
            for x, y in zip((out, out_values), wanted, strict=True):
                np.testing.assert_array_equal(x.numpy()[:total], y[part], f"call {call}")
        plan.free()
        shmem.finalize()

    run_pes(body, 4)


@pytest.mark.cpu_backend  # on GPUs CUDA captures
def test_in_a_graph_and_refused(run_pes):
    def body():
        shmem.init()
        me, n, stream = shmem.my_pe(), shmem.n_pes(), shmem.stream()
        plan = SampleSort(size=50, dtype="int64", capacity=20)
        keys, out = to_send(keys_of("int64", "all", me, 50)), shmem.device_array(20, "int64")
        received = shmem.device_array(n, "int64")
        with shmem.capture(stream) as graph:
            plan(keys, out=out, received=received, stream=stream)
        for _ in range(2):
            out.copy_from(POISON)
            graph.launch(stream)
            assert (np.diff(out.numpy()) >= 0).all()
            assert plan.dropped() == received.numpy().sum() - 20
        plan = SampleSort(size=50, dtype="int64", method="kernel")
        wide = shmem.device_array(100, "int64")
        for call in range(5):  # from the third on they are a graph
            every = [keys_of("int64", "all", pe, 50, call) for pe in range(n)]
            keys.copy_from(every[me])
            plan(keys, out=wide, received=received, stream=stream)
            total, (wanted,) = received.numpy().sum(), reference(every)
            part = slice(None, total) if me == 0 else slice(100 - total, None)
            np.testing.assert_array_equal(wide.numpy()[:total], wanted[part])
        assert [repeat.calls for repeat in plan._repeats.values()] == [5]
        with pytest.raises(shmem.ArgumentError, match="there are 51 keys, the plan is for 50"):
            plan(shmem.device_array(51, "int64"), out=out, received=received)
        with pytest.raises(shmem.ArgumentError, match="of dtypes there are int32"):
            SampleSort(size=5, dtype="float32")
        with pytest.raises(shmem.ArgumentError, match="method is 'fast'"):
            SampleSort(size=5, dtype="int32", method="fast")
        shmem.finalize()

    run_pes(body, 2)


@pytest.mark.sweep
@given(st.data())
@settings(
    max_examples=20, deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],  # each example is a job of its own
)  # fmt: skip
def test_any_keys_by_the_kernels(run_pes, data):
    n = data.draw(st.integers(1, 4), "PEs")
    some = st.lists(st.integers(-3, 3) | st.integers(-(2**31), 2**31 - 1), max_size=40)
    keys = [np.array(data.draw(some), "int32") for _ in range(n)]

    def body():
        shmem.init()
        check(SampleSort(size=40, dtype="int32", method="kernel"), keys)
        shmem.finalize()

    run_pes(body, n)
