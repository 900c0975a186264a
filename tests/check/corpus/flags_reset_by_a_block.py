"""Each thread has a flag, set to 1 in each step; the threads do not reset them in between."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2
THREADS = 4


@shmem.jit
def kernel(slots, src, out, flags, acks):
    t = cuda.threadIdx.x
    own, flag, ack = src[t : t + 1], flags[t : t + 1], acks[t : t + 1]
    for step in range(1, 4):
        if shmem.my_pe() == 0:
            shmem.put_signal(slots[step, t : t + 1], own, flag, 1, shmem.SIGNAL_SET, 1)  # <- 1
            shmem.signal_wait_until(ack, shmem.CMP_GE, step if FIXED else 0)
        else:
            shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)
            out[step, t] = slots[step, t]  # <- 2
            if FIXED:
                flags[t] = 0
                shmem.quiet()
                shmem.signal_op(ack, step, shmem.SIGNAL_SET, 0)


shmem.init()
src = shmem.ones(THREADS, dtype="float32")
slots = shmem.ones((4, THREADS), dtype="float32")
out = shmem.ones((4, THREADS), dtype="float32")
flags = shmem.zeros(THREADS, dtype="uint64")
acks = shmem.zeros(THREADS, dtype="uint64")
kernel[1, THREADS](slots, src, out, flags, acks)
shmem.finalize()
