"""Threads reverse an array in place, without a barrier between reading and writing."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 1


@shmem.jit
def kernel(a):
    i = cuda.threadIdx.x
    value = a[63 - i]  # <- 1
    if FIXED:
        cuda.syncthreads()
    a[i] = value  # <- 2


shmem.init()
kernel[1, 64](shmem.ones(64, dtype="int32"))
shmem.finalize()
