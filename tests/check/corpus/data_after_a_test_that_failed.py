"""A test has failed, so the data are asked for; but they are read without another test."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def kernel(dst, src, out, flag, wanted):
    if shmem.my_pe() == 0:
        there = shmem.test(flag, shmem.CMP_EQ, 1)
        shmem.signal_op(wanted, 1, shmem.SIGNAL_SET, 1)
        while FIXED and not there:
            there = shmem.test(flag, shmem.CMP_EQ, 1)
        out[0] = dst[0]  # <- 2
    else:
        shmem.signal_wait_until(wanted, shmem.CMP_EQ, 1)
        shmem.put_signal(dst, src, flag, 1, shmem.SIGNAL_SET, 0)  # <- 1


shmem.init()
src, dst = shmem.ones(8, dtype="float32"), shmem.zeros(8, dtype="float32")
flag, wanted = shmem.zeros(1, dtype="uint64"), shmem.zeros(1, dtype="uint64")
kernel[1, 1](dst, src, shmem.zeros(1, dtype="float32"), flag, wanted)
shmem.finalize()
