"""Blocks add to a number, one at a time by a lock, and give it back without a fence."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 1


@shmem.jit(collective=True)
def kernel(lock, total):
    if cuda.threadIdx.x == 0:
        while cuda.atomic.cas(lock, 0, 0, 1) != 0:
            pass
        total[0] += 1.0  # <- 1 # <- 2
        if FIXED:
            cuda.threadfence()
        cuda.atomic.exch(lock, 0, 0)


shmem.init()
kernel[3, 32](shmem.zeros(1, dtype="int32"), shmem.zeros(1, dtype="float32"))
shmem.finalize()
