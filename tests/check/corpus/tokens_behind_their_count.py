"""A signal tells how many tokens come, and is sent before them."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def kernel(tokens, src, out, count):
    i, other = cuda.threadIdx.x, 1 - shmem.my_pe()
    if not FIXED and i == 0:
        shmem.signal_op(count, 3, shmem.SIGNAL_SET, other)
    shmem.put_nbi_block(tokens, src, other)  # <- 1
    if FIXED and i == 0:
        shmem.fence()
        shmem.signal_op(count, 3, shmem.SIGNAL_SET, other)
    n = shmem.signal_wait_until(count, shmem.CMP_NE, 0)
    for k in range(n):
        out[32 * k + i] = tokens[32 * k + i]  # <- 2


shmem.init()
src, tokens, out = (shmem.ones(96, dtype="float16") for _ in range(3))
kernel[1, 32](tokens, src, out, shmem.zeros(1, dtype="uint64"))
shmem.finalize()
