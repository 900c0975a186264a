"""The first warp adds the sums of all warps, which may not be there."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 1


@shmem.jit
def kernel(a, out):
    i = cuda.threadIdx.x
    sums = cuda.shared.array(4, "float32")
    value = a[i]
    for k in (16, 8, 4, 2, 1):
        value += cuda.shfl_down_sync(0xFFFFFFFF, value, k)
    if i % 32 == 0:
        sums[i // 32] = value  # <- 1
    if FIXED:
        cuda.syncthreads()
    if i == 0:
        out[0] = sums[0] + sums[1] + sums[2] + sums[3]  # <- 2


shmem.init()
kernel[1, 128](shmem.ones(128, dtype="float32"), shmem.zeros(1, dtype="float32"))
shmem.finalize()
