"""Two PEs write to the same place of a third."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 3


@shmem.jit
def kernel(dst, src):
    me = shmem.my_pe()
    if me > 0:
        shmem.put(dst[me if FIXED else 0 :], src[:1], 0)  # <- 1 <- 2


shmem.init()
src = shmem.full(64, shmem.my_pe(), dtype="float32")
dst = shmem.zeros(64, dtype="float32")
flag = shmem.zeros(1, dtype="uint64")
kernel[1, 1](dst, src)
shmem.finalize()
