# A good report: ordering, what p writes may arrive after it is read; missing: fence() before
# signal_op.
"""A number is sent with p, then a flag; who waits for the flag reads the number with g."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def kernel(number, out, flag):
    me = shmem.my_pe()
    shmem.p(number, 5, 1 - me)  # <- 1
    if FIXED:
        shmem.fence()
    shmem.signal_op(flag, 1, shmem.SIGNAL_SET, 1 - me)
    shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)
    out[0] = shmem.g(number, me)  # <- 2


shmem.init()
number, out = shmem.zeros(1, dtype="float32"), shmem.zeros(1, dtype="float32")
kernel[1, 1](number, out, shmem.zeros(1, dtype="uint64"))
shmem.finalize()
