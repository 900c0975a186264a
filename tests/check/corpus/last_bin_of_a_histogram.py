"""The threads that clear a histogram in shared memory are one too few."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 1
BINS = 33


@shmem.jit
def kernel(out, src):
    i = cuda.threadIdx.x
    bins = cuda.shared.array(BINS, "int32")
    for k in range(i, BINS if FIXED else 32, cuda.blockDim.x):
        bins[k] = 0
    cuda.syncthreads()
    cuda.atomic.add(bins, src[cuda.grid(1)], 1)
    cuda.syncthreads()
    for k in range(i, BINS, cuda.blockDim.x):
        cuda.atomic.add(out, k, bins[k])  # <- 1


shmem.init()
src = shmem.array([k % 32 for k in range(64)], dtype="int32")
kernel[2, 32](shmem.zeros(BINS, dtype="int32"), src)
shmem.finalize()
