# A good report: race, the store at 1 and gemm_block; missing: cuda.syncthreads() between the two.
"""Threads load a tile to shared memory and multiply it, without a barrier."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 1


@shmem.jit
def kernel(c, a, b):
    i = cuda.threadIdx.x
    tile = cuda.shared.array((32, 4), "float32")
    for k in range(4):
        tile[i, k] = a[i, k]  # <- 1
    if FIXED:
        cuda.syncthreads()
    shmem.gemm_block(c, tile, b, False)  # <- 2


shmem.init()
c, a, b = (shmem.ones(shape, dtype="float32") for shape in ((32, 4), (32, 4), (4, 4)))
kernel[1, 32](c, a, b)
shmem.finalize()
