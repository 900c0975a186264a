"""The ring all-reduce against NumPy."""

import numpy as np
import pytest
from gpushmem.kernels import RingAllReduce
from numba import cuda

import gpushmem as shmem


def all_reduce(size, dtype, blocks, calls):
    """Sum arrays that differ by PE and call; return the results of all calls."""
    shmem.init()
    plan = RingAllReduce(size, dtype, blocks=blocks)
    x = shmem.device_array(size, dtype)
    results = []
    for call in range(calls):
        x.copy_from((np.arange(size) % 97 + 1000 * shmem.my_pe() + call).astype(dtype))
        plan(x)
        results.append(x.numpy())
    plan.free()
    shmem.finalize()
    return results


@pytest.mark.parametrize("n_pes", [1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize(("size", "blocks"), [(0, 1), (1, 1), (7, 1), (1000, 1), (1001, 3), (5, 4)])
def test_sums_are_numpys(run_pes, n_pes, size, blocks):
    calls = 3
    results = run_pes(n_pes, all_reduce, size, "float64", blocks, calls)
    for got in results:
        for call in range(calls):
            base = np.arange(size) % 97 + call
            np.testing.assert_array_equal(got[call], n_pes * base + 500 * n_pes * (n_pes - 1))


def test_every_pe_ends_with_the_same_bits(run_pes):
    def body():
        shmem.init()
        x = shmem.to_device(np.random.default_rng(shmem.my_pe()).normal(size=4099).astype("f4"))
        RingAllReduce(4099, "float32", blocks=2)(x)
        result = x.numpy().tobytes()
        shmem.finalize()
        return result

    assert len(set(run_pes(5, body))) == 1


def test_many_calls_without_a_barrier_while_pes_are_held_up(run_pes):
    calls = 1500

    @shmem.jit
    def fill_and_dawdle(x, call, turns):
        for i in range(x.size):
            x[i] = 1000 * shmem.my_pe() + call + i
        for k in range(turns):
            cuda.atomic.add(x, 0, k - k)

    @shmem.jit
    def check(x, call, wrong):
        n = shmem.n_pes()
        for i in range(x.size):
            if x[i] != n * (call + i) + 500 * n * (n - 1):
                wrong[0] += 1

    def body():
        shmem.init()
        rng = np.random.default_rng(shmem.my_pe())
        plan = RingAllReduce(23, "int64")
        x, wrong = shmem.device_array(23, "int64"), shmem.to_device(np.zeros(1, "int64"))
        for call in range(calls):
            dawdle = int(rng.integers(0, 100_000)) if rng.random() < 0.02 else 0
            fill_and_dawdle[1, 1](x, call, dawdle)
            plan(x)
            check[1, 1](x, call, wrong)
        result = int(wrong.numpy()[0])
        shmem.finalize()
        return result

    assert run_pes(3, body, timeout=120) == [0, 0, 0]


def test_an_array_that_is_not_the_plans(run_pes):
    def body():
        shmem.init()
        plan = RingAllReduce(8, "float32")
        for wrong in (shmem.device_array(9, "float32"), shmem.device_array(8, "float64")):
            with pytest.raises(shmem.ArgumentError, match="the plan is for 8 of float32"):
                plan(wrong)
        shmem.finalize()

    run_pes(1, body)
