"""A flag is swapped in after the data, without a fence."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def kernel(dst, src, out, flag):
    other = 1 - shmem.my_pe()
    shmem.iput_block(dst, src, 2, 1, 16, other)  # <- 1
    if cuda.threadIdx.x == 0:
        if FIXED:
            shmem.fence()
        shmem.atomic_swap(flag, 7, other)
        shmem.wait_until(flag, shmem.CMP_EQ, 7)
        out[0] = dst[4]  # <- 2


shmem.init()
src, dst = shmem.ones(16, dtype="int32"), shmem.zeros(32, dtype="int32")
kernel[1, 32](dst, src, shmem.zeros(1, dtype="int32"), shmem.zeros(1, dtype="int64"))
shmem.finalize()
