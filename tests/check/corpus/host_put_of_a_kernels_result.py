"""The host puts what its own kernel is still computing."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def compute(a):
    a[cuda.threadIdx.x] = cuda.threadIdx.x  # <- 2


shmem.init()
a, b = shmem.zeros(32, dtype="float32"), shmem.zeros(32, dtype="float32")
compute[1, 32](a)
if FIXED:
    shmem.synchronize()
shmem.put(b, a, 1 - shmem.my_pe())  # <- 1
shmem.finalize()
