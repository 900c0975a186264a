"""Threads mark elements of what an exchange fills, without a barrier of the block before it."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def kernel(dst, src):
    i = cuda.threadIdx.x
    dst[2 * i] = -1  # <- 2
    if FIXED:
        cuda.syncthreads()
        shmem.sync_all_block()
    shmem.alltoalls_block(shmem.TEAM_WORLD, dst, src, 2, 1, 16)  # <- 1


shmem.init()
dst, src = shmem.zeros(64, dtype="int32"), shmem.ones(32, dtype="int32")
kernel[1, 32](dst, src)
shmem.finalize()
