"""One warp gathers numbers of all PEs, and the others use them."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def kernel(sizes, size, out):
    i = cuda.threadIdx.x
    if i < 32:
        shmem.fcollect_warp(shmem.TEAM_WORLD, sizes, size)  # <- 1
    if FIXED:
        cuda.syncthreads()
    out[i] = sizes[i % 2]  # <- 2


shmem.init()
size = shmem.full(1, 10 * shmem.my_pe(), dtype="int32")
kernel[1, 64](shmem.zeros(2, dtype="int32"), size, shmem.zeros(64, dtype="int32"))
shmem.finalize()
