"""A barrier of all PEs by the whole block completes what all its threads have put."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def kernel(dst, out):
    i, other = cuda.threadIdx.x, 1 - shmem.my_pe()
    shmem.p(dst[i:], i, other)  # <- 1
    if FIXED:
        shmem.barrier_all_block()
    elif i == 0:
        shmem.barrier_all()
    out[i] = dst[i]  # <- 2


shmem.init()
dst, out = shmem.zeros(64, dtype="float32"), shmem.zeros(64, dtype="float32")
kernel[1, 64](dst, out)
shmem.finalize()
