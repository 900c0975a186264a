"""One thread waits for the signal, all use the data."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def kernel(dst, src, out, flag):
    i = cuda.threadIdx.x
    shmem.put_signal_block(dst, src, flag, 1, shmem.SIGNAL_SET, 1 - shmem.my_pe())  # <- 1
    if i == 0:
        shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)
    if FIXED:
        cuda.syncthreads()
    out[i] = dst[i]  # <- 2


shmem.init()
src = shmem.full(64, shmem.my_pe(), dtype="float32")
dst = shmem.zeros(64, dtype="float32")
flag = shmem.zeros(1, dtype="uint64")
kernel[1, 64](dst, src, shmem.zeros(64, dtype="float32"), flag)
shmem.finalize()
