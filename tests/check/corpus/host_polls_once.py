"""A host tests a flag once before it asks for data, and then reads them in any case."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2

shmem.init()
src, dst = shmem.ones(8, dtype="int32"), shmem.zeros(8, dtype="int32")
flag, asked = shmem.zeros(1, dtype="uint64"), shmem.zeros(1, dtype="uint64")
if shmem.my_pe() == 0:
    there = shmem.test(flag, shmem.CMP_EQ, 1)
    shmem.signal_op(asked, 1, shmem.SIGNAL_SET, 1)
    if FIXED and not there:
        shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)
    dst.numpy()  # <- 2
else:
    shmem.signal_wait_until(asked, shmem.CMP_EQ, 1)
    shmem.put_signal(dst, src, flag, 1, shmem.SIGNAL_SET, 0)  # <- 1
shmem.finalize()
