"""Threads read their neighbours' elements of this step, which may have those of the next one."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 1


@shmem.jit(collective=True)
def kernel(a, out, steps):
    i = cuda.grid(1)
    for step in range(steps):
        a[i] = step  # <- 1
        cuda.cg.this_grid().sync()
        out[i] += a[(i + 1) % a.size]  # <- 2
        if FIXED:
            cuda.cg.this_grid().sync()


shmem.init()
kernel[4, 75](shmem.zeros(300, dtype="int32"), shmem.zeros(300, dtype="int32"), 3)
shmem.finalize()
