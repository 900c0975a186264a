"""The source of a non-blocking put is changed before it was read."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def kernel(dst, src):
    shmem.put_nbi(dst, src, 1 - shmem.my_pe())  # <- 1
    if FIXED:
        shmem.flush()
    src[3] = 7  # <- 2
    shmem.quiet()


shmem.init()
src = shmem.full(64, shmem.my_pe(), dtype="float32")
dst = shmem.zeros(64, dtype="float32")
flag = shmem.zeros(1, dtype="uint64")
kernel[1, 1](dst, src)
shmem.finalize()
