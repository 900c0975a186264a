"""A fence does not order what is sent to different PEs."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 3


@shmem.jit
def kernel(dst, src, out, flag):
    me = shmem.my_pe()
    if me == 0:
        shmem.put(dst, src, 2)  # <- 1
        if FIXED:
            shmem.quiet()
        else:
            shmem.fence()
        shmem.signal_op(flag, 1, shmem.SIGNAL_SET, 1)
    elif me == 1:
        shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)
        shmem.get(out, dst, 2)  # <- 2


shmem.init()
src = shmem.full(64, 1 + shmem.my_pe(), dtype="float32")
dst = shmem.zeros(64, dtype="float32")
flag = shmem.zeros(1, dtype="uint64")
kernel[1, 1](dst, src, shmem.zeros(64, dtype="float32"), flag)
shmem.finalize()
