"""A PE calls quiet, puts once more, and meets the others by sync."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def kernel(dst, src, out):
    other = 1 - shmem.my_pe()
    shmem.put(dst[:4], src, other)
    shmem.quiet()
    shmem.put_nbi(dst[4:], src, other)  # <- 1
    if FIXED:
        shmem.quiet()
    shmem.sync_all()
    out[0] = dst[0]
    out[1] = dst[7]  # <- 2


shmem.init()
src, dst, out = (shmem.ones(k, dtype="float32") for k in (4, 8, 2))
kernel[1, 1](dst, src, out)
shmem.finalize()
