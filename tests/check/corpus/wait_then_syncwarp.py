"""One thread waits for the data, and tells only its own warp."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def kernel(dst, src, out, flag):
    i = cuda.threadIdx.x
    shmem.put_signal_block(dst, src, flag, 1, shmem.SIGNAL_ADD, 1 - shmem.my_pe())  # <- 1
    if i == 0:
        shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)
    if FIXED:
        cuda.syncthreads()
    else:
        cuda.syncwarp()
    out[i] = dst[i]  # <- 2


shmem.init()
src, dst, out = (shmem.ones(96, dtype="float32") for _ in range(3))
kernel[1, 96](dst, src, out, shmem.zeros(1, dtype="uint64"))
shmem.finalize()
