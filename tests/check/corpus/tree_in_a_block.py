"""Threads add in a tree in shared memory, with a barrier after the first step only."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 1


@shmem.jit
def kernel(out):
    i = cuda.threadIdx.x
    sums = cuda.shared.array(64, "int32")
    sums[i] = 1
    cuda.syncthreads()
    half = 32
    while half > 0:
        if i < half:
            sums[i] += sums[i + half]  # <- 1 <- 2
        if FIXED:
            cuda.syncthreads()
        half //= 2
    out[i] = sums[i]


shmem.init()
kernel[1, 64](shmem.zeros(64, dtype="int32"))
shmem.finalize()
