"""A PE stores to its own memory and tells its neighbour, which gets it, without quiet."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def kernel(a, out, flag):
    i, other = cuda.threadIdx.x, 1 - shmem.my_pe()
    a[i] = i  # <- 2
    if FIXED:
        cuda.syncthreads()
    if i == 0:
        shmem.quiet()
        shmem.signal_op(flag, 1, shmem.SIGNAL_SET, other)
        shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)
    cuda.syncthreads()
    shmem.get_block(out, a, other)  # <- 1


shmem.init()
a, out = shmem.zeros(64, dtype="float32"), shmem.zeros(64, dtype="float32")
kernel[1, 64](a, out, shmem.zeros(1, dtype="uint64"))
shmem.finalize()
