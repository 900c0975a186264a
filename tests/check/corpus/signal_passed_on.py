"""Data for two PEs; the first is told, and tells the second, whose data need not be there."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 3


@shmem.jit
def kernel(dst, src, out, flag):
    me = shmem.my_pe()
    if me == 0:
        shmem.put(dst, src, 2)  # <- 1
        if FIXED:
            shmem.quiet()
        shmem.put_signal(dst, src, flag, 1, shmem.SIGNAL_SET, 1)
    else:
        shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)
        out[0] = dst[0]  # <- 2
        if me == 1:
            shmem.signal_op(flag, 1, shmem.SIGNAL_SET, 2)


shmem.init()
src, dst = shmem.ones(8, dtype="float32"), shmem.zeros(8, dtype="float32")
kernel[1, 1](dst, src, shmem.zeros(1, dtype="float32"), shmem.zeros(1, dtype="uint64"))
shmem.finalize()
