# A good report: race, nothing orders two writes of the same memory; missing: PE 1 has to tell PE 2.
"""Two PEs write different numbers to one element with p: either may be the last."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 3


@shmem.jit
def kernel(numbers):
    me = shmem.my_pe()
    if me > 0:
        shmem.p(numbers[me if FIXED else 0 :], me, 0)  # <- 1 <- 2


shmem.init()
kernel[1, 1](shmem.zeros(3, dtype="int32"))
shmem.finalize()
