"""The block sends what its threads write, without a barrier."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def kernel(dst, src):
    i = cuda.threadIdx.x
    src[i] = i  # <- 2
    if FIXED:
        cuda.syncthreads()
    shmem.put_block(dst, src, 1 - shmem.my_pe())  # <- 1


shmem.init()
src = shmem.full(64, shmem.my_pe(), dtype="float32")
dst = shmem.zeros(64, dtype="float32")
flag = shmem.zeros(1, dtype="uint64")
kernel[1, 64](dst, src)
shmem.finalize()
