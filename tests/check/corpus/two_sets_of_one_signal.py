"""A signal is set to 1 and to 2 without a fence: the last one to arrive may be the first."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def kernel(flag):
    if shmem.my_pe() == 0:
        for step in range(1, 3):
            shmem.signal_op(flag, step, shmem.SIGNAL_SET, 1)  # <- 1
            if FIXED:
                shmem.fence()
    else:
        shmem.signal_wait_until(flag, shmem.CMP_EQ, 2)  # <- 2


shmem.init()
kernel[1, 1](shmem.zeros(1, dtype="uint64"))
shmem.finalize()
