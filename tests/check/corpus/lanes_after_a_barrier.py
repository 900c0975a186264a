# A good report: race, put_warp and the read; missing: cuda.syncthreads() before the barrier. The
# fixed program is right: when barrier_all_warp returns, it is complete for all lanes.
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
        out[i] = dst[i]  # <- 2


shmem.init()
src, dst, out = (shmem.ones(32, dtype="float32") for _ in range(3))
kernel[1, 64](dst, src, out)
shmem.finalize()
