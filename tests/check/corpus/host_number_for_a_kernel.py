"""A host puts a number to its neighbour, whose kernel reads it, and only then a barrier follows."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def scale(a, factor):
    a[cuda.threadIdx.x] *= factor[0]  # <- 2


shmem.init()
a, factor = shmem.ones(32, dtype="float64"), shmem.ones(1, dtype="float64")
shmem.p(factor, 3.0, 1 - shmem.my_pe())  # <- 1
if FIXED:
    shmem.barrier_all()
scale[1, 32](a, factor)
shmem.barrier_all()
shmem.finalize()
