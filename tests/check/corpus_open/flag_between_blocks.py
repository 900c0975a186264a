# A good report: race, blocks of a grid; missing: cuda.threadfence() before the flag. The fixed
# program is right.
"""A block stores a value and sets a flag; the other one polls the flag with compare-and-swap."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 1


@shmem.jit(collective=True)
def kernel(value, out, flag):
    if cuda.threadIdx.x == 0:
        if cuda.blockIdx.x == 0:
            value[0] = 5  # <- 1
            if FIXED:
                cuda.threadfence()
            cuda.atomic.exch(flag, 0, 1)
        else:
            while cuda.atomic.cas(flag, 0, 1, 2) != 1:
                cuda.nanosleep(100)
            cuda.threadfence()
            out[0] = value[0]  # <- 2


shmem.init()
kernel[2, 32](
    shmem.zeros(1, dtype="int32"), shmem.zeros(1, dtype="int32"), shmem.zeros(1, dtype="int32")
)
shmem.finalize()
