# A good report for the bug: ordering; missing: quiet(). The fixed program is right: get_warp is
# complete for all lanes when it returns.
"""What get_nbi_warp fetches is used at once."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def kernel(dst, src, out):
    i = cuda.threadIdx.x
    if FIXED:
        shmem.get_warp(dst, src, 1 - shmem.my_pe())
    else:
        shmem.get_nbi_warp(dst, src, 1 - shmem.my_pe())  # <- 1
    out[i] = dst[31 - i]  # <- 2


shmem.init()
src, dst, out = (shmem.ones(32, dtype="float32") for _ in range(3))
kernel[1, 32](dst, src, out)
shmem.finalize()
