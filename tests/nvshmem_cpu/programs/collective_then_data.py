"""Does a thread, or warp, see old data in `dst` after a collective?

Meanwhile other threads of its block read the numbers beside `dst`, in the same words, which nobody
writes. The argument is the scope.
"""

from sys import argv

import numpy as np
from numba import cuda

import gpushmem as shmem

N, ROUNDS = 2, 40
WORLD = shmem.TEAM_WORLD
FORM, THREADS = {"thread": ("", 1), "warp": ("_warp", 32)}[argv[1]]
broadcast, fcollect, collect, alltoall, alltoalls, reduce, reducescatter, barrier_all = (
    getattr(shmem, name + FORM)
    for name in (
        "broadcast", "fcollect", "collect", "alltoall", "alltoalls", "reduce", "reducescatter",
        "barrier_all",
    )
)  # fmt: skip


@shmem.jit
def kernel(memory, src, between, old):  # noqa: PLR0912
    n = shmem.n_pes()
    for k in range(1, ROUNDS + 1):
        for which in range(7):
            size = N if which == 0 or which >= 5 else n * N
            dst, value = memory[1 : 1 + size], 10 * k + which
            if cuda.threadIdx.x >= THREADS:
                for _ in range(40):
                    between[0] += memory[0] + memory[1 + size]
            else:
                for i in range(src.size):
                    src[i] = value
                barrier_all()
                if which == 0:
                    broadcast(WORLD, dst, src[:N], 0)
                elif which == 1:
                    fcollect(WORLD, dst, src[:N])
                elif which == 2:
                    collect(WORLD, dst, src[:N])
                elif which == 3:
                    alltoall(WORLD, dst, src)
                elif which == 4:
                    alltoalls(WORLD, dst, src, 1, 1, N)
                elif which == 5:
                    reduce(WORLD, dst, src[:N], "sum")
                else:
                    reducescatter(WORLD, dst, src, "sum")
                wanted = value * n if which >= 5 else value
                for i in range(size):
                    if dst[i] != wanted:
                        cuda.atomic.add(old, which, 1)
                barrier_all()
            cuda.syncthreads()


with shmem.session():
    n = shmem.n_pes()
    memory, src = shmem.zeros(n * N + 2, np.int32), shmem.zeros(n * N, np.int32)
    between, old = shmem.zeros(1, np.int64), shmem.zeros(7, np.int64)
    kernel[1, 2 * THREADS](memory, src, between, old)
    shmem.barrier_all()
    print("old", *old.numpy())
