"""A reader lets the writer go on, and only then resets the flag, perhaps after the next message."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def kernel(dst, src, out, flag, ack):
    if shmem.my_pe() == 0:
        shmem.put_signal(dst, src, flag, 1, shmem.SIGNAL_SET, 1)
        shmem.signal_wait_until(ack, shmem.CMP_EQ, 1)
        shmem.put_signal(dst, src, flag, 1, shmem.SIGNAL_SET, 1)  # <- 1
    else:
        shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)
        out[0] = dst[0]
        if FIXED:
            flag[0] = 0
            shmem.quiet()
        shmem.signal_op(ack, 1, shmem.SIGNAL_SET, 0)
        if not FIXED:
            flag[0] = 0  # <- 2


shmem.init()
src, dst = shmem.ones(8, dtype="float32"), shmem.zeros(8, dtype="float32")
flag, ack = shmem.zeros(1, dtype="uint64"), shmem.zeros(1, dtype="uint64")
kernel[1, 1](dst, src, shmem.zeros(1, dtype="float32"), flag, ack)
shmem.finalize()
