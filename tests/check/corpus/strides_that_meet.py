"""Two PEs send every second and every third element, and meet at every sixth."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 3


@shmem.jit
def kernel(dst, src):
    me = shmem.my_pe()
    if me == 1:
        shmem.iput_block(dst, src, 2, 1, 16, 0)  # <- 1
    elif me == 2:
        step = 2 if FIXED else 3
        shmem.iput_block(dst[1 if FIXED else 0 :], src, step, 1, 10, 0)  # <- 2


shmem.init()
src, dst = shmem.ones(16, dtype="int64"), shmem.zeros(32, dtype="int64")
kernel[1, 32](dst, src)
shmem.finalize()
