"""Each warp puts its half; thread 0 signals before the other warp has come that far."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def kernel(dst, src, out, flag):
    i, other = cuda.threadIdx.x, 1 - shmem.my_pe()
    half = i // 32 * 32
    shmem.put_warp(dst[half : half + 32], src[half : half + 32], other)  # <- 1
    if FIXED:
        cuda.syncthreads()
    if i == 0:
        shmem.fence()
        shmem.signal_op(flag, 1, shmem.SIGNAL_SET, other)
        shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)
    cuda.syncthreads()
    out[i] = dst[i]  # <- 2


shmem.init()
src, dst, out = (shmem.ones(64, dtype="float32") for _ in range(3))
kernel[1, 64](dst, src, out, shmem.zeros(1, dtype="uint64"))
shmem.finalize()
