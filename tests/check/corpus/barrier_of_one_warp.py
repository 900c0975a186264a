"""A warp calls a barrier of all PEs for what another warp puts."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def kernel(dst, src, out):
    i = cuda.threadIdx.x
    if i >= 32:
        shmem.put_warp(dst, src, 1 - shmem.my_pe())  # <- 1
    if FIXED:
        cuda.syncthreads()
    if i < 32:
        shmem.barrier_all_warp()
    cuda.syncthreads()
    out[i] = dst[i % 32]  # <- 2


shmem.init()
src, dst, out = (shmem.ones(k, dtype="float32") for k in (32, 32, 64))
kernel[1, 64](dst, src, out)
shmem.finalize()
