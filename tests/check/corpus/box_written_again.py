"""A box is written again before its reader is done with it."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def kernel(dst, src, out, flag, ack):
    other = 1 - shmem.my_pe()
    for step in range(1, 4):
        shmem.put_signal(dst, src, flag, step, shmem.SIGNAL_SET, other)  # <- 1
        shmem.signal_wait_until(flag, shmem.CMP_GE, step)  # <- 3
        out[0] += dst[0]  # <- 2
        if FIXED:
            shmem.signal_op(ack, step, shmem.SIGNAL_SET, other)
            shmem.signal_wait_until(ack, shmem.CMP_GE, step)


shmem.init()
src, dst = shmem.ones(8, dtype="float32"), shmem.zeros(8, dtype="float32")
flag, ack = shmem.zeros(1, dtype="uint64"), shmem.zeros(1, dtype="uint64")
kernel[1, 1](dst, src, shmem.zeros(1, dtype="float32"), flag, ack)
shmem.finalize()
