"""Each step's data come with a signal; the reader polls it with g, which orders nothing."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def kernel(data, src, flag, ack, out):
    me = shmem.my_pe()
    for step in range(1, 4):
        if me == 0:
            shmem.put_signal(data, src[8 * step :][:8], flag, step, shmem.SIGNAL_SET, 1)  # <- 1
            shmem.signal_wait_until(ack, shmem.CMP_GE, step)
        else:
            if FIXED:
                shmem.signal_wait_until(flag, shmem.CMP_EQ, step)
            else:
                while shmem.g(flag, 1) != step:
                    cuda.nanosleep(1000)
            for i in range(data.size):
                out[8 * step + i] = data[i]  # <- 2
            shmem.signal_op(ack, 1, shmem.SIGNAL_ADD, 0)


shmem.init()
src, out = shmem.ones(32, dtype="int64"), shmem.zeros(32, dtype="int64")
data, ack = shmem.zeros(8, dtype="int64"), shmem.zeros(1, dtype="uint64")
kernel[1, 1](data, src, shmem.zeros(1, dtype="uint64"), ack, out)
shmem.finalize()
