"""Each step of a prefix sum reads what other threads replace in the same step."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 1


@shmem.jit
def kernel(a):
    i = cuda.threadIdx.x
    step = 1
    while step < 32:
        left = a[i - step] if i >= step else 0  # <- 1
        if FIXED:
            cuda.syncthreads()
        a[i] += left  # <- 2
        cuda.syncthreads()
        step *= 2


shmem.init()
kernel[1, 32](shmem.ones(32, dtype="int32"))
shmem.finalize()
