"""A plain load after one thread has waited, with and without a barrier of the block before it."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv


@shmem.jit
def kernel(data, out, flag, ack):
    i = cuda.threadIdx.x
    other = 1 - shmem.my_pe()
    if shmem.my_pe() == 0:
        shmem.signal_wait_until(ack, shmem.CMP_EQ, 1)
        shmem.put_signal(data, out, flag, 1, shmem.SIGNAL_SET, other)
    else:
        before = data[i]
        shmem.signal_op(ack, 1, shmem.SIGNAL_SET, other)
        if FIXED:
            shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)
        else:
            for _ in range(1000):
                cuda.nanosleep(1000)
        out[i] = before + data[i]


shmem.init()
data, out = shmem.zeros(1, "int32"), shmem.ones(1, "int32")
flag, ack = shmem.zeros(1, "uint64"), shmem.zeros(1, "uint64")
kernel[1, 1](data, out, flag, ack)
shmem.barrier_all()
assert shmem.my_pe() == 0 or out.numpy()[0] == FIXED
shmem.finalize()
