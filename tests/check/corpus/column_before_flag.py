"""A column is sent with iput, and a flag is set with p, without a fence."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def kernel(dst, src, out, ready):
    other = 1 - shmem.my_pe()
    shmem.iput(dst, src, 8, 8, 8, other)  # <- 1
    if FIXED:
        shmem.fence()
    shmem.p(ready, 1, other)
    shmem.wait_until(ready, shmem.CMP_NE, 0)
    for k in range(8):
        out[k] = dst[8 * k]  # <- 2


shmem.init()
src, dst = shmem.ones(64, dtype="float32"), shmem.zeros(64, dtype="float32")
kernel[1, 1](dst, src, shmem.zeros(8, dtype="float32"), shmem.zeros(1, dtype="int32"))
shmem.finalize()
