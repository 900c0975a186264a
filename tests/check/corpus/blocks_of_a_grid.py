"""A block reads what another one writes."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 1


@shmem.jit(collective=True)
def kernel(a, out):
    b = cuda.blockIdx.x
    if cuda.threadIdx.x == 0:
        a[b] = b + 1  # <- 2
    if FIXED:
        cuda.cg.this_grid().sync()
    if cuda.threadIdx.x == 0:
        out[b] = a[1 - b]  # <- 1


shmem.init()
kernel[2, 32](shmem.zeros(2, dtype="int32"), shmem.zeros(2, dtype="int32"))
shmem.finalize()
