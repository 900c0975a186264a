"""A block waits for another of its launch, which may have no room until this one has ended."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit(collective=FIXED)
def kernel(dst, src, flag):
    me = shmem.my_pe()
    if cuda.blockIdx.x == 1:
        shmem.put_signal(dst, src, flag, 1, shmem.SIGNAL_SET, me)  # <- 1
    else:
        shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)  # <- 2
        src[0] = dst[0]


shmem.init()
src, dst = shmem.ones(4, dtype="float32"), shmem.zeros(4, dtype="float32")
kernel[2, 1](dst, src, shmem.zeros(1, dtype="uint64"))
shmem.finalize()
