"""An array is cleared and then filled by two puts, which may arrive in either order."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def kernel(dst, zero, src):
    other = 1 - shmem.my_pe()
    shmem.put(dst, zero, other)  # <- 1
    if FIXED:
        shmem.fence()
    shmem.put(dst, src, other)  # <- 2


shmem.init()
zero, src, dst = (shmem.full(10, k, dtype="int64") for k in range(3))
kernel[1, 1](dst, zero, src)
shmem.finalize()
