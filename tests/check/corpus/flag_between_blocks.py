"""A block waits for the flag of another one, which was set before the data were fenced."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 1


@shmem.jit(collective=True)
def kernel(data, flag, out):
    i = cuda.threadIdx.x
    if cuda.blockIdx.x == 0:
        data[i] = i  # <- 1
        cuda.syncthreads()
        if i == 0:
            if FIXED:
                cuda.threadfence()
            else:
                cuda.threadfence_block()
            cuda.atomic.exch(flag, 0, 1)
    else:
        if i == 0:
            while cuda.atomic.add(flag, 0, 0) == 0:
                pass
        cuda.syncthreads()
        out[i] = data[i]  # <- 2


shmem.init()
data, out = shmem.zeros(32, dtype="float32"), shmem.zeros(32, dtype="float32")
kernel[2, 32](data, shmem.zeros(1, dtype="int32"), out)
shmem.finalize()
