"""A tile in shared memory is loaded when some threads still use the last one."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 1


@shmem.jit
def kernel(a, out):
    i = cuda.threadIdx.x
    tile = cuda.shared.array(32, "float32")
    for k in range(4):
        tile[i] = a[32 * k + i]  # <- 1
        cuda.syncthreads()
        for j in range(32):
            out[i] += tile[j]  # <- 2
        if FIXED:
            cuda.syncthreads()


shmem.init()
kernel[1, 32](shmem.ones(128, dtype="float32"), shmem.zeros(32, dtype="float32"))
shmem.finalize()
