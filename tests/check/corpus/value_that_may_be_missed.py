"""A signal is set to the next step, when a slow PE may still wait for the last one."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def kernel(flag, out, ack):
    for step in range(1, 3):
        if shmem.my_pe() == 0:
            shmem.fence()
            shmem.signal_op(flag, step, shmem.SIGNAL_SET, 1)  # <- 1
            if FIXED:
                shmem.signal_wait_until(ack, shmem.CMP_GE, step)
        else:
            out[step] = shmem.signal_wait_until(flag, shmem.CMP_EQ, step, 10**8)  # <- 2
            shmem.signal_op(ack, step, shmem.SIGNAL_SET, 0)


shmem.init()
flag, ack = shmem.zeros(1, dtype="uint64"), shmem.zeros(1, dtype="uint64")
kernel[1, 1](flag, shmem.zeros(3, dtype="int32"), ack)
shmem.finalize()
