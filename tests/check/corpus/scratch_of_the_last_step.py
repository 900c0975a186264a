"""Each step leaves its sum in shared memory, and the next one overwrites it while it is read."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 1


@shmem.jit
def kernel(out):
    i = cuda.threadIdx.x
    total = cuda.shared.array(1, "float32")
    for step in range(3):
        if i == 0:
            total[0] = step  # <- 1
        cuda.syncthreads()
        out[i] += total[0]  # <- 2
        if FIXED:
            cuda.syncthreads()


shmem.init()
kernel[1, 64](shmem.zeros(64, dtype="float32"))
shmem.finalize()
