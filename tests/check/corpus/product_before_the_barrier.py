"""The threads fill a matrix and multiply it, without having met."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def kernel(c, a, b):
    i = cuda.threadIdx.x
    for k in range(4):
        a[i, k] = i + k  # <- 2
    if FIXED:
        cuda.syncthreads()
    shmem.gemm_block(c, a, b, False)  # <- 1


shmem.init()
c, a, b = (shmem.ones(shape, dtype="float32") for shape in ((32, 4), (32, 4), (4, 4)))
kernel[1, 32](c, a, b)
shmem.finalize()
