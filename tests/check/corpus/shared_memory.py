"""Threads read what others write to shared memory, without a barrier."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 1


@shmem.jit
def kernel(out):
    i = cuda.threadIdx.x
    row = cuda.shared.array(64, "float32")
    row[i] = i  # <- 2
    if FIXED:
        cuda.syncthreads()
    out[cuda.grid(1)] = row[63 - i]  # <- 1


shmem.init()
kernel[2, 64](shmem.zeros(128, dtype="float32"))
shmem.finalize()
