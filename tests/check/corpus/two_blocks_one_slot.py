"""Two blocks of a PE send to one slot of another PE."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def kernel(slots, src):
    b = cuda.blockIdx.x
    slot = 16 * b if FIXED else 0
    shmem.put_block(slots[slot:], src[16 * b : 16 * b + 16], 1 - shmem.my_pe())  # <- 1 <- 2


shmem.init()
kernel[2, 32](shmem.zeros(32, dtype="float32"), shmem.ones(32, dtype="float32"))
shmem.finalize()
