"""Kernels that wait, by the number of threads of a block: `python bench/threads.py`.

Plans of gpushmem.kernels on 2 PEs, with 1, 32, 128 and 256 threads a block in turn: the ratio is
that of the slowest to the fastest; and with 1, 2, 8 and 32 blocks of as many threads as plans take.
And what the threads of one block of 256 do together, in lockstep and on fibers.
"""

import dataclasses
import importlib
import sys
import time
from itertools import chain
from pathlib import Path

import numpy as np
from harness import best_of, report, row, seconds
from numba import cuda

import gpushmem as shmem
from gpushmem.artifacts.launch_shape import shape_of
from gpushmem.simt.run.kernel import Kernel

sys.path.append(str(Path(__file__).parent / "kernels"))
FAMILIES = "all_reduce", "all_reduce_norm", "jacobi", "gemm", "moe"
THREADS, BLOCKS = (1, 32, 128, 256), (1, 2, 8, 32)
SERIES, LONG = 7, 0.02  # series of calls for each number of threads, and seconds that each takes
MEETINGS = 20_000
FULL = 0xFFFFFFFF


# --- plans


def cases_of(step):
    """The cases of the families in bench/kernels, or every so many of a family's."""
    for name in FAMILIES:
        family = importlib.import_module(name)
        for case in family.CASES[::step]:
            yield family, case


def tuned(family, case, **changes):
    """A plan's call, as if what a backend suggests had been changed so."""
    usual = shmem.tuning
    shmem.tuning = lambda: dataclasses.replace(usual(), **changes)
    try:
        return family.fused(case)[1]
    finally:
        shmem.tuning = usual


def series(call, n):
    shmem.barrier_all()
    began = time.perf_counter()
    for _ in range(n):
        call()
    shmem.synchronize()
    return (time.perf_counter() - began) / n


def length(once):
    """How many calls make a series of LONG seconds: the same on all PEs, that of PE 0."""
    lengths = shmem.zeros(1, "int64")
    shmem.p(lengths, max(2, min(300, int(LONG / once))), 0)
    shmem.barrier_all()
    return int(shmem.g(lengths, 0))


def body(what, numbers, step):
    """What each case is, and the best seconds of a call for each of the numbers of `what`."""
    found = []
    for family, case in cases_of(step):
        shmem.init(heap_size="2G")
        calls = {number: tuned(family, case, **{what: number}) for number in numbers}
        n = length(max(series(call, 2) for call in calls.values()))
        best = dict.fromkeys(numbers, float("inf"))
        for _ in range(SERIES):
            for number, call in calls.items():
                best[number] = min(best[number], series(call, n))
        found.append((f"{family.NAME.partition(':')[0]}, {family.label(case)}", best))
        shmem.finalize()
    return found


def times(best):
    return ", ".join(f"{n}: {seconds(t)}" for n, t in best.items())


def plans():
    for what, best in shmem.spawn(body, 2, ("threads", THREADS, 1))[0]:
        slowest, fastest = max(best.values()), min(best.values())
        yield row(
            f"{what} ({times(best)})", slowest, "the fastest", fastest, "<= 1.3", slowest / fastest
        )


def blocks():
    """One block, which is the default, against the best number of blocks; some of the cases."""
    for what, best in shmem.spawn(body, 2, ("blocks", BLOCKS, 3))[0]:
        fastest = min(best.values())
        yield row(
            f"{what}, blocks ({times(best)})",
            best[1],
            "the fastest",
            fastest,
            "",
            best[1] / fastest,
        )


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
    report("threads", chain(meetings(), plans(), blocks()))
