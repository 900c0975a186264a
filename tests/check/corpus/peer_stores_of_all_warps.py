"""All threads store to a peer; thread 0 calls fence and signals when its own stores are done."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def kernel(dst, out, flag):
    i, other = cuda.threadIdx.x, 1 - shmem.my_pe()
    there = shmem.peer_array(dst, other)
    there[i] = i  # <- 1
    if FIXED:
        cuda.syncthreads()
    if i == 0:
        shmem.fence()
        shmem.signal_op(flag, 1, shmem.SIGNAL_ADD, other)
        shmem.signal_wait_until(flag, shmem.CMP_GE, 1)
    cuda.syncthreads()
    out[i] = dst[i]  # <- 2


shmem.init()
dst, out = shmem.zeros(96, dtype="float32"), shmem.zeros(96, dtype="float32")
kernel[1, 96](dst, out, shmem.zeros(1, dtype="uint64"))
shmem.finalize()
