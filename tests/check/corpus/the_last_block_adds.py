# A good report: race, blocks of a grid; missing: cuda.threadfence() before the counter. The fixed
# program is right: the last block comes after the fences of the others.
"""Blocks store partial sums and count themselves; the last one adds them."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 1


@shmem.jit
def kernel(sums, out, count):
    if cuda.threadIdx.x == 0:
        sums[cuda.blockIdx.x] = 1  # <- 1
        if FIXED:
            cuda.threadfence()
        if cuda.atomic.add(count, 0, 1) == cuda.gridDim.x - 1:
            for k in range(cuda.gridDim.x):
                out[0] += sums[k]  # <- 2


shmem.init()
kernel[3, 32](
    shmem.zeros(3, dtype="float32"), shmem.zeros(1, dtype="float32"), shmem.zeros(1, dtype="int32")
)
shmem.finalize()
