"""A thread calls fence and sends the signal for what another one has put."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def kernel(dst, src, out, flag):
    i, other = cuda.threadIdx.x, 1 - shmem.my_pe()
    if i == 0:
        shmem.put(dst, src, other)  # <- 1
    if FIXED:
        cuda.syncwarp()
    if i == 1:
        shmem.fence()
        shmem.signal_op(flag, 1, shmem.SIGNAL_SET, other)
        shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)
        out[0] = dst[0]  # <- 2


shmem.init()
src, dst = shmem.ones(8, dtype="float32"), shmem.zeros(8, dtype="float32")
kernel[1, 32](dst, src, shmem.zeros(1, dtype="float32"), shmem.zeros(1, dtype="uint64"))
shmem.finalize()
