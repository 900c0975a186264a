"""The flag is sent first, then the data."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def kernel(dst, src, out, flag):
    other = 1 - shmem.my_pe()
    if not FIXED:
        shmem.signal_op(flag, 1, shmem.SIGNAL_SET, other)
        shmem.fence()
    shmem.put(dst, src, other)  # <- 1
    if FIXED:
        shmem.fence()
        shmem.signal_op(flag, 1, shmem.SIGNAL_SET, other)
    shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)
    out[0] = dst[0]  # <- 2


shmem.init()
src, dst = shmem.ones(8, dtype="int32"), shmem.zeros(8, dtype="int32")
kernel[1, 1](dst, src, shmem.zeros(1, dtype="int32"), shmem.zeros(1, dtype="uint64"))
shmem.finalize()
