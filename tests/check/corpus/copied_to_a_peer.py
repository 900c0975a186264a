"""A block copies to another PE's memory, and signals without a fence."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2
N = 40


@shmem.jit
def kernel(x, y, out, signal):
    me = shmem.my_pe()
    if me == 0:
        shmem.copy_block(shmem.peer_array(x, 1), y)  # <- 1
        if FIXED:
            shmem.fence()
        shmem.signal_op(signal, 1, shmem.SIGNAL_SET, 1)
    else:
        shmem.signal_wait_until(signal, shmem.CMP_EQ, 1)
        for i in range(N):
            out[i] = x[i]  # <- 2


shmem.init()
x, y, out = shmem.zeros(N), shmem.ones(N), shmem.device_array(N)
signal = shmem.zeros(1, dtype="uint64")
kernel[1, 1](x, y, out, signal)
shmem.barrier_all()
shmem.finalize()
