"""The source of put_signal_nbi is filled again while it is being sent."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def kernel(dst, src, flag):
    i, other = cuda.threadIdx.x, 1 - shmem.my_pe()
    for step in range(1, 3):
        src[i] = step  # <- 2
        cuda.syncthreads()
        part = dst[32 * step : 32 * step + 32]
        shmem.put_signal_nbi_block(part, src, flag, step, shmem.SIGNAL_SET, other)  # <- 1
        if FIXED:
            shmem.flush_block()


shmem.init()
src, dst = shmem.zeros(32, dtype="int32"), shmem.zeros(96, dtype="int32")
kernel[1, 32](dst, src, shmem.zeros(1, dtype="uint64"))
shmem.finalize()
