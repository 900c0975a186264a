"""Kernels that wait, by the number of threads of a block: `python bench/threads.py`.

Plans of gpushmem.kernels on 2 PEs, with 1, 32, 128 and 256 threads a block in turn: the ratio is
that of the slowest to the fastest. And what the threads of one block of 256 do together, in
lockstep and on fibers.
"""

import time
from functools import partial

import numpy as np
from harness import best_of, report, row, seconds
from numba import cuda

import gpushmem as shmem
from gpushmem.artifacts.shape import shape_of
from gpushmem.simt.run.kernel import Kernel

THREADS = 1, 32, 128, 256
SERIES, LONG = 7, 0.02  # series of calls for each number of threads, and seconds that each takes
MEETINGS = 20_000
FULL = 0xFFFFFFFF


# --- plans


def all_reduce(nbytes, algorithm, threads):
    from gpushmem.kernels import AllReduce

    size = nbytes // 4
    x = shmem.zeros(size, "float32")
    return partial(AllReduce(size=size, dtype="float32", algorithm=algorithm, threads=threads), x)


def all_reduce_norm(tokens, threads):
    from gpushmem.kernels import AllReduceRMSNorm

    plan = AllReduceRMSNorm(tokens=tokens, hidden=1024, dtype="float32", threads=threads)
    x, residual, out = (shmem.zeros((tokens, 1024), "float32") for _ in range(3))
    return partial(plan, x, residual, shmem.ones(1024, "float32"), out=out)


def jacobi(shape, threads):
    from gpushmem.kernels import Jacobi

    plan = Jacobi(shape=shape, dtype="float32", threads=threads)
    return partial(plan, plan.scatter(np.zeros(shape, np.float32)), 20)


def cases():
    for algorithm in ("one_shot", "two_shot", "ring"):
        for nbytes in (8, 16 << 10, 64 << 10, 1 << 20, 4 << 20):
            yield f"all-reduce, {algorithm}, {nbytes} B", partial(all_reduce, nbytes, algorithm)
    for tokens in (1, 64):
        yield f"all-reduce and RMSNorm, {tokens} x 1024", partial(all_reduce_norm, tokens)
    for shape in ((256, 256), (2048, 2048), (96, 96, 96)):
        yield f"Jacobi, {shape}, 20 iterations", partial(jacobi, shape)


def series(call, n):
    shmem.barrier_all()
    began = time.perf_counter()
    for _ in range(n):
        call()
    shmem.synchronize()
    return (time.perf_counter() - began) / n


def body():
    shmem.init()
    found = []
    for what, make in cases():
        calls = {threads: make(threads) for threads in THREADS}
        once = max(series(call, 2) for call in calls.values())
        lengths = shmem.zeros(1, "int64")
        shmem.p(lengths, max(2, min(300, int(LONG / once))), 0)  # the same on all PEs: that of PE 0
        shmem.barrier_all()
        n = int(shmem.g(lengths, 0))
        best = dict.fromkeys(THREADS, float("inf"))
        for _ in range(SERIES):
            for threads, call in calls.items():
                best[threads] = min(best[threads], series(call, n))
        found.append((what, best))
    shmem.finalize()
    return found


def plans():
    for what, best in shmem.spawn(body, n_pes=2)[0]:
        times = ", ".join(f"{n}: {seconds(t)}" for n, t in best.items())
        slowest, fastest = max(best.values()), min(best.values())
        yield row(f"{what} ({times})", slowest, "the fastest", fastest, "<= 1.3", slowest / fastest)


# --- what threads of a block do together


@cuda.jit(device=True)
def meet():
    cuda.syncthreads()


def barriers(n, flag, out):
    cuda.syncwarp()  # a kernel that only has barriers is of another kind
    for _ in range(n):
        meet()


def polls(n, flag, out):
    for k in range(n):
        if cuda.threadIdx.x == 0:
            cuda.atomic.exch(flag, 0, k)
            while cuda.atomic.add(flag, 0, 0) != k:
                pass
        meet()


def grids(n, flag, out):
    grid = cuda.cg.this_grid()
    for _ in range(n):
        grid.sync()


def shuffles(n, flag, out):
    value = np.float32(cuda.threadIdx.x)
    for _ in range(n // 5):
        for k in range(5):
            value += cuda.shfl_xor_sync(FULL, value, 1 << k)
    out[cuda.threadIdx.x] = value


def meetings():
    args = MEETINGS, np.zeros(1, np.int64), np.zeros(256, np.int64)
    for what, kernel in (
        ("a barrier in a device function", barriers),
        ("a loop of one thread with an atomic operation, and a barrier", polls),
        ("a grid's barrier, one block", grids),
        ("a shuffle of 32 bits", shuffles),
    ):
        both = [
            Kernel(kernel, lockstep=lockstep).prepare(shape_of(1, 256), args)
            for lockstep in (True, False)
        ]
        ours, fibers = (t / MEETINGS for t in best_of(5, *both))
        yield row(f"{what}, 256 threads", ours, "on fibers", fibers, "<= 300 ns", fibers / ours)


if __name__ == "__main__":
    report("threads", [*meetings(), *plans()])
