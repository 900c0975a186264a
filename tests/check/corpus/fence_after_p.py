"""A number and a flag, without a fence."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def kernel(dst, out, flag):
    other = 1 - shmem.my_pe()
    shmem.p(dst, 5, other)  # <- 1
    if FIXED:
        shmem.fence()
    shmem.signal_op(flag, 1, shmem.SIGNAL_SET, other)
    shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)
    out[0] = dst[0]  # <- 2


shmem.init()
src = shmem.full(64, shmem.my_pe(), dtype="float32")
dst = shmem.zeros(64, dtype="float32")
flag = shmem.zeros(1, dtype="uint64")
kernel[1, 1](dst, src, flag)
shmem.finalize()
