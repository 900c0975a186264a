# A good report: race, put_signal of PE 2 and the read; missing: PE 2 has to tell PE 0.
"""A wait for all flags leaves one out, as status says so, and its data are read nevertheless."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 3


@shmem.jit
def kernel(dst, src, out, flags, status):
    me = shmem.my_pe()
    if me == 0:
        shmem.wait_until_all(flags, status, shmem.CMP_EQ, 1)
        out[0] = dst[1] + dst[2]  # <- 2
    else:
        shmem.put_signal(dst[me:], src, flags[me - 1 :], 1, shmem.SIGNAL_SET, 0)  # <- 1


shmem.init()
src, dst, out = (shmem.ones(k, dtype="float32") for k in (1, 3, 1))
status = shmem.array([0, 0 if FIXED else 1], dtype="int32")
kernel[1, 1](dst, src, out, shmem.zeros(2, dtype="uint64"), status)
shmem.finalize()
