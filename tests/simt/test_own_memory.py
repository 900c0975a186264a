"""What a thread's variables point to is the thread's own, also after a barrier."""

import numpy as np
import pytest
from numba import cuda, from_dtype, int64
from numba.cuda.core import config

from gpushmem.artifacts.launch_shape import shape_of
from gpushmem.simt.intrinsics.nrt import allocation_stats
from gpushmem.simt.run.kernel import Kernel

PAIR = from_dtype(np.dtype([("a", "i8"), ("b", "i8")]))
X = np.arange(1, 6)


@cuda.jit(device=True)
def same(a):
    return a


def enumerates(out, x, which):
    total = 0
    for j, value in enumerate(x):
        cuda.syncthreads()
        total += value * j
    out[cuda.threadIdx.x] = total


def zips(out, x, which):
    total = 0
    for (j, value), other in zip(enumerate(x), x):  # noqa: B905
        total += j * value + other
        cuda.syncthreads()
    out[cuda.threadIdx.x] = total


def row_of_local_array(out, x, which):
    t = cuda.threadIdx.x
    own = cuda.local.array((2, 3), int64)
    for k in range(3):
        own[0, k], own[1, k] = t, 10 * t
    row = own[which]
    cuda.syncthreads()
    out[t] = row[0]


def reshaped_local_array(out, x, which):
    t = cuda.threadIdx.x
    own = cuda.local.array(4, int64)
    for k in range(4):
        own[k] = t * 10 + k
    square, words = own.reshape(2, 2), own[1:].view(np.uint64)
    cuda.syncthreads()
    out[t] = square[1, 0] + 1000 * int64(words[2])


def iterated_local_array(out, x, which):
    t = cuda.threadIdx.x
    own = cuda.local.array(3, int64)
    for k in range(3):
        own[k] = t * 10 + k
    total = 0
    for value in own:
        cuda.syncthreads()
        total += value
    out[t] = total


def indices(out, x, which):
    total, matrix = 0, x[:4].reshape(2, 2)
    for i, j in np.ndindex(2, 2):
        cuda.syncthreads()
        total += matrix[i, j] * (i + 1)
    for (i, j), value in np.ndenumerate(matrix.T):
        cuda.syncthreads()
        total += value * (i + 10 * j)
    out[cuda.threadIdx.x] = total


def elements(out, x, which):
    total, matrix = 0, x[:4].reshape(2, 2)
    for value in matrix.T.flat:
        cuda.syncthreads()
        total = 2 * total + value
    for a in np.nditer(matrix):
        cuda.syncthreads()
        total = 2 * total + a.item()
    out[cuda.threadIdx.x] = total


def record_of_local_array(out, x, which):
    t = cuda.threadIdx.x
    own = cuda.local.array(2, PAIR)
    own[0]["a"] = t
    own[1]["a"] = 10 * t
    record = own[t % 2]
    cuda.syncthreads()
    out[t] = record["a"]


def given_back_by_a_function(out, x, which):
    t = cuda.threadIdx.x
    own = cuda.local.array(3, int64)
    for k in range(3):
        own[k] = t * 10 + k
    alias = same((which, own))[1]
    cuda.syncthreads()
    out[t] = alias[1]


def stepped_by_hand(out, x, which):
    """An iterator that is advanced in one piece and used in the next."""
    t = cuda.threadIdx.x
    pairs = iter(zip(x, x[::-1]))  # noqa: B905
    if t % 2:
        next(pairs)
    cuda.syncthreads()
    a, b = next(pairs)
    cuda.syncthreads()
    a2, b2 = next(pairs)
    out[t] = a + 10 * b + 100 * a2 + 1000 * b2


# kernel -> what thread t writes
KERNELS = {
    enumerates: lambda t: sum(j * int(v) for j, v in enumerate(X)),
    zips: lambda t: sum(j * int(v) + int(v) for j, v in enumerate(X)),
    row_of_local_array: lambda t: 10 * t,
    reshaped_local_array: lambda t: 10 * t + 2 + 1000 * (10 * t + 3),
    iterated_local_array: lambda t: 30 * t + 3,
    indices: lambda t: (1 + 2 + 2 * (3 + 4)) + (3 * 10 + 2 * 1 + 4 * 11),
    elements: lambda t: sum(v << k for k, v in enumerate([4, 3, 2, 1, 4, 2, 3, 1])),
    record_of_local_array: lambda t: 10 * t if t % 2 else t,
    given_back_by_a_function: lambda t: 10 * t + 1,
    stepped_by_hand: lambda t: (
        2 + 10 * 4 + 100 * 3 + 1000 * 3 if t % 2 else 1 + 10 * 5 + 100 * 2 + 1000 * 4
    ),
}


def results(kernel, kind):
    """What a kernel writes with 1, 2, 3 and 32 threads."""
    for threads in (1, 2, 3, 32):
        out = np.full(threads, -1, np.int64)
        running = kernel.prepare(shape_of(2, threads), (out, X, 1))
        running()
        assert running.entry.kind == (kind if threads > 1 else "fibers")
        yield out.tolist()


@pytest.mark.parametrize("function", KERNELS, ids=lambda f: f.__name__)
def test_what_a_variable_points_to_is_the_threads_own_after_a_barrier(function):
    expected = [[KERNELS[function](t) for t in range(n)] for n in (1, 2, 3, 32)]
    assert list(results(Kernel(function), "lockstep")) == expected
    assert list(results(Kernel(function, lockstep=False), "fibers")) == expected


@pytest.mark.parametrize("function", [enumerates, row_of_local_array], ids=lambda f: f.__name__)
def test_so_it_is_in_debug_mode(function):
    expected = [[KERNELS[function](t) for t in range(n)] for n in (1, 2, 3, 32)]
    assert list(results(Kernel(function, debug=True), "lockstep")) == expected


def test_whether_an_element_is_in_an_array_is_looked_up_once():
    def look(x, out):
        t = cuda.threadIdx.x
        first, mine = 7 in x, t in x
        cuda.syncthreads()
        x[t] = -1
        cuda.syncthreads()
        out[t] = 2 * first + mine

    x, out = np.array([7, 5, 1, 1]), np.zeros(4, np.int64)
    assert Kernel(look).prepare(shape_of(1, 4), (x, out))() is None
    assert out.tolist() == [2, 3, 2, 2]


def test_what_one_thread_stores_is_its_own():
    def store(out, at):
        t = cuda.threadIdx.x
        own = cuda.local.array(3, int64)
        for k in range(3):
            own[k] = 10
        if t == 1:
            own[0] = 7
        cuda.syncthreads()
        out[t] = own[at]

    out = np.zeros(3, np.int64)
    running = Kernel(store).prepare(shape_of(1, 3), (out, 0))
    running()
    assert running.entry.kind == "lockstep"
    assert out.tolist() == [10, 7, 10]


def test_arrays_made_in_a_kernel_with_barriers(monkeypatch):
    def make(out):
        t = cuda.threadIdx.x
        own = np.zeros(4, np.int64)
        own[1] = t
        for k in range(3):
            cuda.syncthreads()
            later = np.empty(2, np.int64)
            later[0] = own[1] + k
            cuda.syncthreads()
            out[t] += later[0]

    monkeypatch.setattr(config, "CUDA_ENABLE_NRT", True)
    out, before = np.zeros(40, np.int64), allocation_stats()
    Kernel(make).prepare(shape_of(1, 40), (out,))()
    np.testing.assert_array_equal(out, 3 * np.arange(40) + 3)
    made, freed = (getattr(allocation_stats(), k) - getattr(before, k) for k in ("alloc", "free"))
    assert made == freed == 40 * 4
