"""One of several flags is waited for, and the data of all of them are used."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 3


@shmem.jit
def kernel(dst, src, out, flags):
    me = shmem.my_pe()
    if me == 0:
        if FIXED:
            shmem.wait_until_all(flags, None, shmem.CMP_GE, 1)
        else:
            shmem.wait_until_any(flags, None, shmem.CMP_GE, 1)
        out[0] = dst[1] + dst[2]  # <- 2
    else:
        shmem.put_signal(dst[me:], src, flags[me - 1 :], me, shmem.SIGNAL_SET, 0)  # <- 1


shmem.init()
src, dst = shmem.ones(1, dtype="float32"), shmem.zeros(3, dtype="float32")
kernel[1, 1](dst, src, shmem.zeros(1, dtype="float32"), shmem.zeros(2, dtype="uint64"))
shmem.finalize()
