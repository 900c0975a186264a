"""A step of a stencil reads across the border of blocks, which only meet within themselves."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 1


@shmem.jit(collective=True)
def kernel(old, new, last):
    i = cuda.grid(1)
    new[i + 1] = old[i] + old[i + 2]  # <- 2
    if FIXED:
        cuda.cg.this_grid().sync()
    else:
        cuda.syncthreads()
    last[i + 1] = new[i] + new[i + 2]  # <- 1


shmem.init()
old, new, last = (shmem.ones(66, dtype="float32") for _ in range(3))
kernel[2, 32](old, new, last)
shmem.finalize()
