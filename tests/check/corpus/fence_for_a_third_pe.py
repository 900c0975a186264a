"""A store to one PE's memory, a fence, and a signal to another PE, which gets what was stored."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 3


@shmem.jit
def kernel(dst, out, flag):
    me = shmem.my_pe()
    if me == 0:
        shmem.peer_array(dst, 2)[0] = 5  # <- 1
        if FIXED:
            shmem.quiet()
        else:
            shmem.fence()
        shmem.signal_op(flag, 1, shmem.SIGNAL_SET, 1)
    elif me == 1:
        shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)
        shmem.get(out, dst, 2)  # <- 2


shmem.init()
dst, out = shmem.zeros(1, dtype="float32"), shmem.zeros(1, dtype="float32")
kernel[1, 1](dst, out, shmem.zeros(1, dtype="uint64"))
shmem.finalize()
