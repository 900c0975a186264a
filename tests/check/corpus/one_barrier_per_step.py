"""A loop has a barrier before data are read, but none before they are written again."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def kernel(dst, src, out):
    other = 1 - shmem.my_pe()
    for step in range(3):
        shmem.put(dst, src[step:], other)  # <- 1
        shmem.barrier_all()
        out[step] = dst[0]  # <- 2
        if FIXED:
            shmem.sync_all()


shmem.init()
src, dst, out = (shmem.ones(4, dtype="float32") for _ in range(3))
kernel[1, 1](dst, src, out)
shmem.finalize()
