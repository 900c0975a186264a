"""Two blocks add to a number, each under a lock of its own."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 1


@shmem.jit(collective=True)
def kernel(locks, total):
    k = 0 if FIXED else cuda.blockIdx.x
    if cuda.threadIdx.x == 0:
        while cuda.atomic.cas(locks, k, 0, 1) != 0:
            pass
        cuda.threadfence()
        total[0] += 1.0  # <- 1 # <- 2
        cuda.threadfence()
        cuda.atomic.exch(locks, k, 0)


shmem.init()
kernel[2, 32](shmem.zeros(2, dtype="int32"), shmem.zeros(1, dtype="float32"))
shmem.finalize()
