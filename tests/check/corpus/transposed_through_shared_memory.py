"""Threads transpose a tile through shared memory, without a barrier."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 1


@shmem.jit
def kernel(a, b):
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    tile = cuda.shared.array((8, 8), "float32")
    tile[y, x] = a[y, x]  # <- 2
    if FIXED:
        cuda.syncthreads()
    b[y, x] = tile[x, y]  # <- 1


shmem.init()
kernel[1, (8, 8)](shmem.ones((8, 8), dtype="float32"), shmem.zeros((8, 8), dtype="float32"))
shmem.finalize()
