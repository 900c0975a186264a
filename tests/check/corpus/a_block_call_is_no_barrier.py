"""A call of the whole block does not order what its threads do around it."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def kernel(a, out, dst, src):
    i = cuda.threadIdx.x
    a[i] = i  # <- 2
    shmem.put_block(dst, src, 1 - shmem.my_pe())
    if FIXED:
        cuda.syncthreads()
    out[i] = a[63 - i]  # <- 1


shmem.init()
a, out, dst, src = (shmem.zeros(64, dtype="float32") for _ in range(4))
kernel[1, 64](a, out, dst, src)
shmem.finalize()
