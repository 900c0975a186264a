"""A loop writes one element more than the array has."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 1


@shmem.jit
def kernel(row, n):
    for k in range(n):
        row[k] = k  # <- 1 <- 2


shmem.init()
row, next_row = shmem.zeros(32, dtype="float64"), shmem.zeros(32, dtype="float64")
kernel[1, 1](row, 32 if FIXED else 33)
shmem.finalize()
