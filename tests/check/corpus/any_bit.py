# A good report: race, put and the read; missing: PE 1 (or 2) has to tell PE 0, as the wait
# holds when the bit of the other one is set.
"""Each sender sets a bit; a wait for any of them is taken for one for all."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 3


@shmem.jit
def kernel(dst, src, out, bits):
    me = shmem.my_pe()
    if me > 0:
        shmem.put(dst[me:], src, 0)  # <- 1
        shmem.fence()
        shmem.atomic_or(bits, me, 0)
    else:
        if FIXED:
            shmem.wait_until(bits, shmem.CMP_EQ, 3)
        else:
            shmem.wait_until(bits, shmem.CMP_NE, 0)
        out[0] = dst[1] + dst[2]  # <- 2


shmem.init()
src, dst, out = (shmem.ones(k, dtype="float32") for k in (1, 3, 1))
kernel[1, 1](dst, src, out, shmem.zeros(1, dtype="uint32"))
shmem.finalize()
