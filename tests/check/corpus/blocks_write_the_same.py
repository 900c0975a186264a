"""Two blocks write one element."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 1


@shmem.jit
def kernel(out):
    b = cuda.blockIdx.x
    if cuda.threadIdx.x == 0:
        out[b if FIXED else 0] = b  # <- 1 <- 2


shmem.init()
kernel[2, 32](shmem.zeros(2, dtype="int32"))
shmem.finalize()
