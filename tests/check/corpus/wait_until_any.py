"""The data of another PE than the one that was waited for is read."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 3


@shmem.jit
def kernel(dst, src, out, flags):
    me = shmem.my_pe()
    if me == 0:
        k = shmem.wait_until_any(flags[1:], None, shmem.CMP_EQ, 1) + 1
        out[0] = dst[k if FIXED else 3 - k]  # <- 2
    else:
        shmem.put_signal(dst[me:], src[:1], flags[me:], 1, shmem.SIGNAL_SET, 0)  # <- 1


shmem.init()
src, dst = shmem.ones(4, dtype="float32"), shmem.zeros(4, dtype="float32")
kernel[1, 1](dst, src, shmem.zeros(1, dtype="float32"), shmem.zeros(3, dtype="uint64"))
shmem.finalize()
