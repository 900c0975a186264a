"""The first block waits for the data of all blocks."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def kernel(dst, src, out, flag):
    i, b = cuda.threadIdx.x, cuda.blockIdx.x
    if b == 0:
        shmem.put_signal_block(dst, src, flag, 1, shmem.SIGNAL_SET, 1 - shmem.my_pe())  # <- 1
    if i == 0 and (b == 0 or FIXED):
        shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)
    cuda.syncthreads()
    out[32 * b + i] = dst[32 * b + i]  # <- 2


shmem.init()
src, dst, out = (shmem.ones(64, dtype="float32") for _ in range(3))
kernel[2, 32](dst, src, out, shmem.zeros(1, dtype="uint64"))
shmem.finalize()
