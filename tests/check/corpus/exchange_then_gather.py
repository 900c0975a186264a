"""After an exchange a fast PE sends into the workspace that a slow one is still reading."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def kernel(work, src, out, flag):
    i, other = cuda.threadIdx.x, 1 - shmem.my_pe()
    shmem.alltoall_block(shmem.TEAM_WORLD, work, src)
    shmem.barrier_all_block()
    out[i] = work[i]  # <- 2
    cuda.syncthreads()
    if FIXED:
        shmem.sync_all_block()
    shmem.put_signal_block(work, src, flag, 1, shmem.SIGNAL_SET, other)  # <- 1
    if i == 0:
        shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)


shmem.init()
work, src, out = (shmem.ones(32, dtype="float32") for _ in range(3))
kernel[1, 32](work, src, out, shmem.zeros(1, dtype="uint64"))
shmem.finalize()
