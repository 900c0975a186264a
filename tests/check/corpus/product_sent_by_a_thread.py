"""A thread sends rows of a matrix into which another block of its PE still adds a product."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit(collective=True)
def kernel(c, a, b, there):
    if cuda.blockIdx.x == 1:
        shmem.gemm_block(c, a, b, True)  # <- 1
    if FIXED:
        cuda.cg.this_grid().sync()
    if cuda.grid(1) == 0:
        shmem.put(there, c, 1 - shmem.my_pe())  # <- 2


shmem.init()
c, a, b, there = (shmem.ones((8, 8), dtype="float64") for _ in range(4))
kernel[2, 32](c, a, b, there)
shmem.finalize()
