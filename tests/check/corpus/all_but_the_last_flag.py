"""A PE waits for the flags of all others but one."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 4


@shmem.jit
def kernel(dst, src, out, flags):
    me = shmem.my_pe()
    if me > 0:
        shmem.put_signal(dst[me:], src, flags[me:], 1, shmem.SIGNAL_SET, 0)  # <- 1
    else:
        end = 4 if FIXED else 3
        shmem.wait_until_all(flags[1:end], None, shmem.CMP_EQ, 1)
        for k in range(1, 4):
            out[0] += dst[k]  # <- 2


shmem.init()
src, dst = shmem.ones(1, dtype="float32"), shmem.zeros(4, dtype="float32")
kernel[1, 1](dst, src, shmem.zeros(1, dtype="float32"), shmem.zeros(4, dtype="uint64"))
shmem.finalize()
