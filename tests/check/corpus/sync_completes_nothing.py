"""sync_all does not complete puts."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def kernel(dst, src, out):
    shmem.put(dst, src, 1 - shmem.my_pe())  # <- 1
    if FIXED:
        shmem.quiet()
    shmem.sync_all()
    out[0] = dst[0]  # <- 2


shmem.init()
src = shmem.full(64, shmem.my_pe(), dtype="float32")
dst = shmem.zeros(64, dtype="float32")
flag = shmem.zeros(1, dtype="uint64")
kernel[1, 1](dst, src, shmem.zeros(1, dtype="float32"))
shmem.finalize()
