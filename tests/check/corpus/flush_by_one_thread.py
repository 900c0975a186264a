"""Every thread has sent something, but only thread 0 makes sure that its source was read."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def kernel(dst, src):
    i = cuda.threadIdx.x
    shmem.put_nbi(dst[i : i + 1], src[i : i + 1], 1 - shmem.my_pe())  # <- 1
    if FIXED or i == 0:
        shmem.flush()
    src[i] = 0  # <- 2


shmem.init()
kernel[1, 32](shmem.zeros(32, dtype="float32"), shmem.ones(32, dtype="float32"))
shmem.finalize()
