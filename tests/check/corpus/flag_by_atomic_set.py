"""A flag is set by an atomic operation, which does not order the elements put before it."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def kernel(dst, out, flag):
    i, other = cuda.threadIdx.x, 1 - shmem.my_pe()
    shmem.p(dst[i:], 2 * i, other)  # <- 1
    cuda.syncthreads()
    if i == 0:
        if FIXED:
            shmem.fence()
        shmem.atomic_set(flag, 1, other)
        shmem.wait_until(flag, shmem.CMP_EQ, 1)
    cuda.syncthreads()
    out[i] = dst[i]  # <- 2


shmem.init()
dst, out = shmem.zeros(32, dtype="int16"), shmem.zeros(32, dtype="int16")
kernel[1, 32](dst, out, shmem.zeros(1, dtype="uint32"))
shmem.finalize()
