"""Stores to a peer's memory are complete after quiet, not after sync."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def kernel(dst, out):
    i = cuda.threadIdx.x
    there = shmem.peer_array(dst, 1 - shmem.my_pe())
    there[i] = 2 * i  # <- 1
    if FIXED:
        shmem.quiet()
    cuda.syncthreads()
    if i == 0:
        shmem.sync_all()
    cuda.syncthreads()
    out[i] = dst[i]  # <- 2


shmem.init()
kernel[1, 64](shmem.zeros(64, dtype="int32"), shmem.zeros(64, dtype="int32"))
shmem.finalize()
