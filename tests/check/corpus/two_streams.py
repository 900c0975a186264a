"""Two kernels on two streams use one array."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 1


@shmem.jit
def fill(a):
    a[cuda.threadIdx.x] = 1  # <- 1


@shmem.jit
def double(a, out):
    out[cuda.threadIdx.x] = 2 * a[cuda.threadIdx.x]  # <- 2


shmem.init()
a, out = shmem.zeros(64, dtype="int32"), shmem.zeros(64, dtype="int32")
first, second = shmem.stream(), shmem.stream()
fill[1, 64, first](a)
if FIXED:
    first.synchronize()
double[1, 64, second](a, out)
shmem.finalize()
