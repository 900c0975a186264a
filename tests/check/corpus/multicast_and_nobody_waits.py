"""A store reaches all PEs of a team, and none of them waits for it."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def kernel(dst, out):
    i = cuda.threadIdx.x
    if shmem.my_pe() == 0:
        shmem.multicast_array(dst, shmem.TEAM_WORLD)[i] = i  # <- 1
    if FIXED:
        cuda.syncthreads()
        shmem.barrier_all_block()
    out[i] = dst[i]  # <- 2


shmem.init()
kernel[1, 32](shmem.zeros(32, dtype="float32"), shmem.zeros(32, dtype="float32"))
shmem.finalize()
