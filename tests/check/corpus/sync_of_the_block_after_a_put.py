"""The whole block puts and calls sync, which completes nothing."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def kernel(dst, src, out):
    i = cuda.threadIdx.x
    shmem.put_nbi_block(dst, src, 1 - shmem.my_pe())  # <- 1
    if FIXED:
        shmem.barrier_all_block()
    else:
        shmem.sync_all_block()
    out[i] = dst[i]  # <- 2


shmem.init()
src, dst, out = (shmem.ones(64, dtype="int32") for _ in range(3))
kernel[1, 64](dst, src, out)
shmem.finalize()
