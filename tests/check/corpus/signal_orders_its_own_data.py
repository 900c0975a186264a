"""put_signal does not order the put before it."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def kernel(dst, src, flag):
    other = 1 - shmem.my_pe()
    shmem.put(dst[:32], src[:32], other)  # <- 1
    if FIXED:
        shmem.fence()
    shmem.put_signal(dst[32:], src[32:], flag, 1, shmem.SIGNAL_SET, other)
    shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)
    src[40] = dst[40]
    src[0] = dst[0]  # <- 2


shmem.init()
src = shmem.full(64, shmem.my_pe(), dtype="float32")
dst = shmem.zeros(64, dtype="float32")
flag = shmem.zeros(1, dtype="uint64")
kernel[1, 1](dst, src, flag)
shmem.finalize()
