"""Kernels that meet in barriers: as in lockstep, so on fibers, also where threads disagree."""

import re

import llvmlite.binding as llvm
import numpy as np
import pytest
from numba import cuda, float32, float64, int64
from numba.cuda.typing.typeof import typeof

from gpushmem.simt.run.kernel import Kernel
from tests.simt.conftest import launch


def both(function, grid, block, *args):
    """Run a kernel in lockstep and on fibers, which `launch` compares; what it wrote last."""
    args = [a.copy() if isinstance(a, np.ndarray) else a for a in args]
    assert launch(function, grid, block, *args) == "fibers"
    return args[-1]


@pytest.mark.parametrize("block", [1, 3, 64, 1000, (5, 7), (3, 4, 5)])
def test_neighbours_exchange_values(block):
    threads = int(np.prod(block))

    def rotate(out):
        shared = cuda.shared.array(1024, int64)
        n = cuda.blockDim.x * cuda.blockDim.y * cuda.blockDim.z
        t = cuda.threadIdx.x + cuda.blockDim.x * (
            cuda.threadIdx.y + cuda.blockDim.y * cuda.threadIdx.z
        )
        shared[t] = t * t
        for k in range(5):
            cuda.syncthreads()
            value = shared[(t + 1) % n]
            cuda.syncthreads()
            shared[t] = value + k
        out[cuda.blockIdx.x, t] = shared[t] + 1000000 * cuda.blockIdx.x

    out = both(rotate, 3, block, np.zeros((3, threads), np.int64))
    t = (np.arange(threads) + 5) % threads
    np.testing.assert_array_equal(out[2], t * t + 10 + 2000000)


def test_a_reduction_whose_steps_depend_on_the_thread():
    def total(x, out):
        shared = cuda.shared.array(256, float64)
        t = cuda.threadIdx.x
        shared[t] = x[cuda.grid(1)]
        cuda.syncthreads()
        half = cuda.blockDim.x // 2
        while half > 0:
            if t < half:
                shared[t] += shared[t + half]
            cuda.syncthreads()
            half //= 2
        if t == 0:
            out[cuda.blockIdx.x] = shared[0]

    x = np.random.default_rng(1).random(1024)
    out = both(total, 4, 256, x, np.zeros(4))
    np.testing.assert_allclose(out, x.reshape(4, 256).sum(1))


def test_threads_that_return_before_a_barrier():
    def leave(out):
        t = cuda.threadIdx.x
        if t >= 20:
            return
        out[t] = 1
        cuda.syncthreads()
        if t == 7:
            return
        cuda.syncthreads()
        out[t] += 10 * t

    out = both(leave, 1, 64, np.zeros(64, np.int64))
    assert out[20:].sum() == 0
    assert out[7] == 1


def test_loops_of_different_lengths():
    def uneven(out):
        t = cuda.threadIdx.x
        for k in range(t % 4 + 1):
            cuda.syncthreads()
            out[t] += k + 1
        out[t] *= 10

    out = both(uneven, 2, 37, np.zeros(37, np.int64))
    assert out[3] > 0


def test_barriers_in_both_arms_of_a_branch():
    def arms(out):
        t = cuda.threadIdx.x
        if t % 2:
            out[t] = 1
            cuda.syncthreads()
            out[t] += 10
        else:
            out[t] = 2
            cuda.syncthreads()
            out[t] += 20
        cuda.syncthreads()
        seen = out[(t + 1) % 16]
        cuda.syncthreads()
        out[t] += 100 * seen

    out = both(arms, 1, 16, np.zeros(16, np.int64))
    np.testing.assert_array_equal(out, np.where(np.arange(16) % 2, 11 + 2200, 22 + 1100))


def test_local_arrays_and_tuples_live_across_barriers():
    def keep(out):
        t = cuda.threadIdx.x
        own = cuda.local.array(4, int64)
        for k in range(4):
            own[k] = 10 * t + k
        pair = (t, t + 0.5)
        cuda.syncthreads()
        shared = cuda.shared.array(64, int64)
        shared[t] = own[3]
        cuda.syncthreads()
        out[t] = own[0] + shared[(t + 1) % 64] + pair[0] + int(pair[1])

    out = both(keep, 1, 64, np.zeros(64, np.int64))
    t = np.arange(64)
    np.testing.assert_array_equal(out, 10 * t + 10 * ((t + 1) % 64) + 3 + 2 * t)


def test_nested_loops_with_inner_loops():
    def nested(x, out):
        shared = cuda.shared.array(32, float64)
        t = cuda.threadIdx.x
        total = 0.0
        for i in range(3):
            for j in range(2):
                shared[t] = x[i, j] * t
                cuda.syncthreads()
                for k in range(32):
                    total += shared[k] * (i + j + k)
                cuda.syncthreads()
        out[t] = total

    both(nested, 1, 32, np.random.default_rng(2).random((3, 2)), np.zeros(32))


def test_what_depends_on_the_thread_is_not_shared_by_the_block():
    """However it is named, also where it is computed only sometimes."""

    def kernel(n, out):
        index, (x, y) = cuda.threadIdx, cuda.grid(2)
        t = index.x
        lane, warp, width = t % 32, t // 32, max(n, 3)
        cuda.syncthreads()
        late = 0
        if t % 2:
            half = t // 2 + width
            late = half * half
        cuda.syncthreads()
        out[t, 0], out[t, 1], out[t, 2], out[t, 3], out[t, 4] = lane, warp, x + y, index.x, late

    out = both(kernel, 1, 70, 2, np.zeros((70, 5), np.int64))
    t = np.arange(70)
    late = np.where(t % 2, (t // 2 + 3) ** 2, 0)
    np.testing.assert_array_equal(out, np.stack([t % 32, t // 32, t, t, late], axis=1))


@pytest.mark.parametrize("steps", [10, 500])
def test_a_long_computation_before_a_barrier(steps):
    scope = {"cuda": cuda, "int64": int64}
    lines = ["def kernel(out):", "h = int64(cuda.threadIdx.x + 1)", *["h = (h << 1) ^ h"] * steps]
    lines += ["cuda.syncthreads()", "out[cuda.threadIdx.x] = h"]
    exec("\n    ".join(lines), scope)
    wanted = np.arange(1, 41)
    for _ in range(steps):
        wanted = (wanted << 1) ^ wanted
    np.testing.assert_array_equal(both(scope["kernel"], 1, 40, np.zeros(40, np.int64)), wanted)


@pytest.mark.parametrize("index", ["cuda.grid(1)", "cuda.blockIdx.x * cuda.blockDim.x + t"])
def test_loops_over_threads_are_vectorised(index):
    """What depends on the thread's index alone is seen to be consecutive, also after a barrier."""
    scope = {"cuda": cuda, "float32": float32}
    exec(
        f"""def kernel(x, out):
    shared = cuda.shared.array(256, float32)
    t = cuda.threadIdx.x
    i = {index}
    if i < x.size:
        shared[t] = x[i]
    cuda.syncthreads()
    if i < x.size:
        out[i] = shared[t] * shared[t]
""",
        scope,
    )
    types = tuple(typeof(np.zeros(1, np.float32)) for _ in range(2))
    code = str(llvm.parse_bitcode(Kernel(scope["kernel"]).compile(types).bitcode))
    assert re.search(r"fmul <\d+ x float>", code)
    assert "gather" not in code
