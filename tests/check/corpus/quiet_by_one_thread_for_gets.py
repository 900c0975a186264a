"""Each thread fetches its part, and one thread calls quiet without having met the others."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def kernel(dst, src, out):
    i = cuda.threadIdx.x
    shmem.get_nbi(dst[4 * i : 4 * i + 4], src[4 * i : 4 * i + 4], 1 - shmem.my_pe())  # <- 1
    if FIXED:
        cuda.syncthreads()
    if i == 0:
        shmem.quiet()
    cuda.syncthreads()
    out[i] = dst[255 - i]  # <- 2


shmem.init()
src, dst = shmem.ones(256, dtype="float32"), shmem.zeros(256, dtype="float32")
kernel[1, 64](dst, src, shmem.zeros(64, dtype="float32"))
shmem.finalize()
