"""Blocks add to a sum that none of them has set to zero."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 1


@shmem.jit
def clear(total):
    cuda.atomic.exch(total, 0, 0)


@shmem.jit
def kernel(total, src):
    cuda.atomic.add(total, 0, src[cuda.grid(1)])  # <- 1


shmem.init()
src, total = shmem.ones(64, dtype="int32"), shmem.empty(1, dtype="int32")
if FIXED:
    clear[1, 1](total)
kernel[4, 16](total, src)
shmem.finalize()
