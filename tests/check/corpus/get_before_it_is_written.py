"""A PE gets what its owner is still writing."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def kernel(src, out):
    src[0] = shmem.my_pe()  # <- 2
    if FIXED:
        shmem.sync_all()
    shmem.get(out, src, 1 - shmem.my_pe())  # <- 1


shmem.init()
src, out = shmem.zeros(1, dtype="float32"), shmem.zeros(1, dtype="float32")
kernel[1, 1](src, out)
shmem.finalize()
