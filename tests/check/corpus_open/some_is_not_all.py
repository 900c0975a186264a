# A good report: race, put_signal and the read; missing: a PE has to tell PE 0, as
# wait_until_some returns when one flag is set.
"""Some flags are waited for, and the data of all of them are used."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 3


@shmem.jit
def kernel(dst, src, out, flags, indices):
    me = shmem.my_pe()
    if me == 0:
        n = shmem.wait_until_some(flags, indices, None, shmem.CMP_EQ, 1)
        while FIXED and n < 2:
            n = shmem.test_some(flags, indices, None, shmem.CMP_EQ, 1)
        out[0] = dst[1] + dst[2]  # <- 2
    else:
        shmem.put_signal(dst[me:], src, flags[me - 1 :], 1, shmem.SIGNAL_SET, 0)  # <- 1


shmem.init()
src, dst, out = (shmem.ones(k, dtype="float32") for k in (1, 3, 1))
kernel[1, 1](dst, src, out, shmem.zeros(2, dtype="uint64"), shmem.zeros(2, dtype="int64"))
shmem.finalize()
