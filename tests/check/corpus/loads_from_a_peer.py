"""Threads load from a peer's array what its threads may not have stored yet."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def kernel(a, out):
    i = cuda.threadIdx.x
    a[i] = i  # <- 2
    cuda.syncthreads()
    if FIXED:
        shmem.sync_all_block()
    there = shmem.peer_array(a, 1 - shmem.my_pe())
    out[i] = there[63 - i]  # <- 1


shmem.init()
kernel[1, 64](shmem.zeros(64, dtype="int32"), shmem.zeros(64, dtype="int32"))
shmem.finalize()
