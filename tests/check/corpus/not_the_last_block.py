"""A block sums what others have written when half of them have arrived."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 1
BLOCKS = 4


@shmem.jit(collective=True)
def kernel(parts, count, total):
    if cuda.threadIdx.x == 0:
        parts[cuda.blockIdx.x] = 1.0 + cuda.blockIdx.x  # <- 1
        cuda.threadfence()
        if cuda.atomic.add(count, 0, 1) == (BLOCKS - 1 if FIXED else BLOCKS // 2):
            for b in range(BLOCKS):
                total[0] += parts[b]  # <- 2


shmem.init()
count = shmem.zeros(1, dtype="int32")
kernel[BLOCKS, 32](shmem.zeros(BLOCKS, dtype="float32"), count, shmem.zeros(1, dtype="float32"))
shmem.finalize()
