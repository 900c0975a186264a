# A good report: race, the two additions. The fixed program is right: its additions are atomic.
"""Blocks count in one histogram, with plain additions."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 1


@shmem.jit
def kernel(bins, values):
    i = cuda.grid(1)
    k = values[i]
    if FIXED:
        cuda.atomic.add(bins, k, 1)
    else:
        bins[k] += 1  # <- 1 <- 2


shmem.init()
values = shmem.array([k // 3 % 4 for k in range(64)], dtype="int64")
kernel[2, 32](shmem.zeros(4, dtype="int32"), values)
shmem.finalize()
