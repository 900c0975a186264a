"""A block advances the epoch, when others may not have looked which of two buffers is theirs."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 1


@shmem.jit(collective=True)
def kernel(epoch, buffers):
    i, b = cuda.threadIdx.x, cuda.blockIdx.x
    half = epoch[0] % 2  # <- 2
    buffers[64 * half + 32 * b + i] = i
    if FIXED:
        cuda.cg.this_grid().sync()
    else:
        cuda.syncthreads()
    if b == 0 and i == 0:
        epoch[0] += 1  # <- 1


shmem.init()
kernel[2, 32](shmem.zeros(1, dtype="int64"), shmem.zeros(128, dtype="float32"))
shmem.finalize()
