# A good report: race, the kernel and the host's read through numpy.asarray; missing: the host has
# to wait for the kernel.
"""The host reads a result through numpy.asarray, which does not wait for kernels."""

import sys

import numpy as np
from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def kernel(a):
    a[cuda.threadIdx.x] = cuda.threadIdx.x  # <- 1


shmem.init()
a = shmem.zeros(32, dtype="float32")
kernel[1, 32](a)
if FIXED:
    shmem.synchronize()
np.asarray(a).sum()  # <- 2
shmem.finalize()
