# A good report: race, put_signal and the read; missing: PE 1 (or 2) has to tell PE 0. The fixed
# program is right.
"""One of several flags is waited for with its value, and the data of all of them are used."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 3


@shmem.jit
def kernel(dst, src, out, flags, values):
    me = shmem.my_pe()
    if me == 0:
        if FIXED:
            shmem.wait_until_all_vector(flags, None, shmem.CMP_EQ, values)
        else:
            shmem.wait_until_any_vector(flags, None, shmem.CMP_EQ, values)
        out[0] = dst[1] + dst[2]  # <- 2
    else:
        shmem.put_signal(dst[me:], src, flags[me - 1 :], me, shmem.SIGNAL_SET, 0)  # <- 1


shmem.init()
src, dst = shmem.ones(1, dtype="float32"), shmem.zeros(3, dtype="float32")
values = shmem.array([1, 2], dtype="uint64")
kernel[1, 1](dst, src, shmem.zeros(1, dtype="float32"), shmem.zeros(2, dtype="uint64"), values)
shmem.finalize()
