"""A sum is added up in memory that was allocated without zeros."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def kernel(total, src):
    for k in range(src.size):
        total[0] += src[k]  # <- 1


shmem.init()
src = shmem.ones(8, dtype="float32")
make = shmem.zeros if FIXED else shmem.empty
total = make(1, dtype="float32")
kernel[1, 1](total, src)
shmem.finalize()
