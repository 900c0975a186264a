"""All threads fill the source of a reduction, and call it without having met."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def kernel(dst, src):
    i = cuda.threadIdx.x
    src[i] = i  # <- 2
    if FIXED:
        cuda.syncthreads()
    shmem.reduce_block(shmem.TEAM_WORLD, dst, src, "max")  # <- 1


shmem.init()
kernel[1, 64](shmem.zeros(64, dtype="int32"), shmem.zeros(64, dtype="int32"))
shmem.finalize()
