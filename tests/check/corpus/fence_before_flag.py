"""A flag that is not ordered after the data."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def kernel(dst, src, flag):
    i, other = cuda.threadIdx.x, 1 - shmem.my_pe()
    shmem.put_block(dst, src, other)  # <- 1
    if i == 0:
        if FIXED:
            shmem.fence()
        shmem.signal_op(flag, 1, shmem.SIGNAL_SET, other)
        shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)
    cuda.syncthreads()
    src[i] = dst[i]  # <- 2


shmem.init()
src = shmem.full(64, shmem.my_pe(), dtype="float32")
dst = shmem.zeros(64, dtype="float32")
flag = shmem.zeros(1, dtype="uint64")
kernel[1, 64](dst, src, flag)
shmem.finalize()
