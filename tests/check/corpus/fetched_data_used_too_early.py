"""The result of get_nbi is read before quiet."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def kernel(dst, src, out):
    shmem.get_nbi(dst, src, 1 - shmem.my_pe())  # <- 1
    if FIXED:
        shmem.quiet()
    out[0] = dst[5]  # <- 2
    shmem.quiet()


shmem.init()
src = shmem.full(64, shmem.my_pe(), dtype="float32")
dst = shmem.zeros(64, dtype="float32")
flag = shmem.zeros(1, dtype="uint64")
kernel[1, 1](dst, src, shmem.zeros(1, dtype="float32"))
shmem.finalize()
