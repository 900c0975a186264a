"""Thread 0 reduces, and all threads scale by the result."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def kernel(total, part, gradient):
    i = cuda.threadIdx.x
    if i == 0:
        shmem.reduce(shmem.TEAM_WORLD, total, part, "sum")  # <- 1
    if FIXED:
        cuda.syncthreads()
    gradient[i] = gradient[i] / total[0]  # <- 2


shmem.init()
total, part = shmem.zeros(1, dtype="float32"), shmem.ones(1, dtype="float32")
kernel[1, 32](total, part, shmem.ones(32, dtype="float32"))
shmem.finalize()
