"""A flag is set to 1 in each step, and is not reset in between."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def kernel(slots, src, out, flag, ack):
    for step in range(1, 4):
        if shmem.my_pe() == 0:
            shmem.put_signal(slots[step:], src, flag, 1, shmem.SIGNAL_SET, 1)  # <- 1
            shmem.signal_wait_until(ack, shmem.CMP_GE, step if FIXED else 0)
        else:
            shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)
            out[step] = slots[step]  # <- 2
            if FIXED:
                flag[0] = 0
                shmem.quiet()
                shmem.signal_op(ack, step, shmem.SIGNAL_SET, 0)


shmem.init()
src, slots, out = (shmem.ones(k, dtype="float32") for k in (1, 4, 4))
kernel[1, 1](slots, src, out, shmem.zeros(1, dtype="uint64"), shmem.zeros(1, dtype="uint64"))
shmem.finalize()
