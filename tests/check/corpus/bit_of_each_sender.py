"""Each sender sets its bit when its data are on the way, not when they have arrived."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 3


@shmem.jit
def kernel(dst, src, out, bits):
    me = shmem.my_pe()
    if me > 0:
        shmem.put(dst[me:], src, 0)  # <- 1
        if FIXED:
            shmem.quiet()
        shmem.atomic_or(bits, 1 << me, 0)
    else:
        shmem.wait_until(bits, shmem.CMP_EQ, 6)
        out[0] = dst[1] + dst[2]  # <- 2


shmem.init()
src, dst = shmem.ones(1, dtype="float32"), shmem.zeros(3, dtype="float32")
kernel[1, 1](dst, src, shmem.zeros(1, dtype="float32"), shmem.zeros(1, dtype="uint32"))
shmem.finalize()
