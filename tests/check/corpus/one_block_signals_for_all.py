"""Every block sends its page, and the first one signals when its own is sent."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit(collective=True)
def kernel(pages, src, out, flag):
    i, b, other = cuda.threadIdx.x, cuda.blockIdx.x, 1 - shmem.my_pe()
    page = slice(32 * b, 32 * b + 32)
    shmem.put_block(pages[page], src[page], other)  # <- 1
    if FIXED:
        cuda.cg.this_grid().sync()
    if b == 0 and i == 0:
        shmem.fence()
        shmem.signal_op(flag, 1, shmem.SIGNAL_SET, other)
    if i == 0:
        shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)
    cuda.syncthreads()
    out[32 * b + i] = pages[32 * b + i]  # <- 2


shmem.init()
pages, src, out = (shmem.ones(64, dtype="float32") for _ in range(3))
kernel[2, 32](pages, src, out, shmem.zeros(1, dtype="uint64"))
shmem.finalize()
