"""A parent in a tree adds the sums of both children, and waits for the signal of either."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 3


@shmem.jit
def kernel(sums, flags):
    me = shmem.my_pe()
    if me > 0:
        shmem.p(sums[me:], 10 * me, 0)  # <- 1
        shmem.fence()
        shmem.signal_op(flags[me:], 1, shmem.SIGNAL_SET, 0)
    else:
        shmem.signal_wait_until(flags[1:], shmem.CMP_EQ, 1)
        if FIXED:
            shmem.signal_wait_until(flags[2:], shmem.CMP_EQ, 1)
        sums[0] += sums[1] + sums[2]  # <- 2


shmem.init()
kernel[1, 1](shmem.zeros(3, dtype="float32"), shmem.zeros(3, dtype="uint64"))
shmem.finalize()
