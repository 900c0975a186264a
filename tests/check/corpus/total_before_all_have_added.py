"""Blocks add to a total atomically, and the first of them reads it."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 1


@shmem.jit(collective=True)
def kernel(total, out):
    if cuda.threadIdx.x == 0:
        cuda.atomic.add(total, 0, 1)  # <- 1
    if FIXED:
        cuda.cg.this_grid().sync()
    if cuda.grid(1) == 0:
        out[0] = total[0]  # <- 2


shmem.init()
kernel[3, 32](shmem.zeros(1, dtype="int32"), shmem.zeros(1, dtype="int32"))
shmem.finalize()
