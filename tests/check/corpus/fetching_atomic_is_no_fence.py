"""An atomic operation that returns a value does not order the puts before it."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def kernel(dst, src, out, arrived):
    other = 1 - shmem.my_pe()
    shmem.put(dst, src, other)  # <- 1
    if FIXED:
        shmem.fence()
    shmem.atomic_fetch_inc(arrived, other)
    shmem.wait_until(arrived, shmem.CMP_EQ, 1)
    out[0] = dst[7]  # <- 2


shmem.init()
src, dst = shmem.ones(8, dtype="float32"), shmem.zeros(8, dtype="float32")
kernel[1, 1](dst, src, shmem.zeros(1, dtype="float32"), shmem.zeros(1, dtype="int32"))
shmem.finalize()
