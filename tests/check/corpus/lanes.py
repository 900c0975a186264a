"""Lanes of a warp exchange numbers through memory, without syncwarp."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 1


@shmem.jit
def kernel(a, out):
    i = cuda.threadIdx.x
    a[i] = i  # <- 2
    if FIXED:
        cuda.syncwarp()
    out[i] = a[i ^ 1]  # <- 1


shmem.init()
kernel[1, 32](shmem.zeros(32, dtype="int32"), shmem.zeros(32, dtype="int32"))
shmem.finalize()
