"""The lanes of half a warp meet, and the other half reads what they have written."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 1


@shmem.jit
def kernel(a, out):
    i = cuda.threadIdx.x
    if i < 16:
        a[i] = i  # <- 2
        if not FIXED:
            cuda.syncwarp(0xFFFF)
    if FIXED:
        cuda.syncwarp()
    if i >= 16:
        out[i] = a[i - 16]  # <- 1


shmem.init()
kernel[1, 32](shmem.zeros(16, dtype="int32"), shmem.zeros(32, dtype="int32"))
shmem.finalize()
