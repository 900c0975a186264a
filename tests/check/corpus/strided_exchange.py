# A good report: race, the stores at 2 and alltoalls_block; missing: cuda.syncthreads(). The fixed
# program is right: it stores to the elements in between.
"""Threads mark elements of an array, one of two of which an exchange is about to write."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def kernel(dst, src):
    i = cuda.threadIdx.x
    dst[2 * i + 1 if FIXED else 2 * i] = -1  # <- 2
    shmem.alltoalls_block(shmem.TEAM_WORLD, dst, src, 2, 1, 16)  # <- 1


shmem.init()
dst, src = shmem.zeros(64, dtype="int32"), shmem.ones(32, dtype="int32")
kernel[1, 32](dst, src)
shmem.finalize()
