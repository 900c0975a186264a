"""One block of a grid takes part in a reduction, another one reads its result."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit(collective=True)
def kernel(dst, src, out):
    b = cuda.blockIdx.x
    if b == 0:
        shmem.reduce_block(shmem.TEAM_WORLD, dst, src, "sum")  # <- 1
    if FIXED:
        cuda.cg.this_grid().sync()
    out[32 * b + cuda.threadIdx.x] = dst[cuda.threadIdx.x]  # <- 2


shmem.init()
src, dst = shmem.ones(32, dtype="float32"), shmem.zeros(32, dtype="float32")
kernel[2, 32](dst, src, shmem.zeros(64, dtype="float32"))
shmem.finalize()
