"""A store reaches all PEs of a team, then a signal, without a fence."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def kernel(dst, out, flag):
    i, other = cuda.threadIdx.x, 1 - shmem.my_pe()
    if shmem.my_pe() == 0:
        everywhere = shmem.multicast_array(dst, shmem.TEAM_WORLD)
        everywhere[i] = i  # <- 1
        cuda.syncthreads()
        if i == 0:
            if FIXED:
                shmem.quiet()
            shmem.signal_op(flag, 1, shmem.SIGNAL_SET, other)
    else:
        if i == 0:
            shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)
        cuda.syncthreads()
        out[i] = dst[i]  # <- 2


shmem.init()
dst, out = shmem.zeros(32, dtype="float32"), shmem.zeros(32, dtype="float32")
kernel[1, 32](dst, out, shmem.zeros(1, dtype="uint64"))
shmem.finalize()
