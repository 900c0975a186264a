"""The owner counts with cuda.atomic in a word to which other PEs add."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def kernel(count):
    me = shmem.my_pe()
    if me == 1 or FIXED:
        shmem.atomic_add(count, 1, 0)  # <- 1
    else:
        cuda.atomic.add(count, 0, 1)  # <- 2


shmem.init()
count = shmem.zeros(1, dtype="int64")
kernel[1, 32](count)
shmem.barrier_all()
shmem.finalize()
