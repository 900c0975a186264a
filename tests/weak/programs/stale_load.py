"""Plain loads of what another PE has put since the last ones, with and without a wait between."""

import sys

import numpy as np
from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv


@shmem.jit
def kernel(data, out, flag, ack):
    i = cuda.threadIdx.x
    other = 1 - shmem.my_pe()
    if shmem.my_pe() == 0:
        if i == 0:
            shmem.signal_wait_until(ack, shmem.CMP_EQ, out.size)
            shmem.put_signal(data, out, flag, 1, shmem.SIGNAL_SET, other)
    else:
        before = data[i]
        shmem.signal_op(ack, 1, shmem.SIGNAL_ADD, other)
        if FIXED:
            shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)
        else:
            for _ in range(1000):
                cuda.nanosleep(1000)
        out[i] = before + data[i]


shmem.init()
data, out = shmem.zeros(16, "int64"), shmem.ones(16, "int64")
flag, ack = shmem.zeros(1, "uint64"), shmem.zeros(1, "uint64")
kernel[1, 16](data, out, flag, ack)
shmem.barrier_all()
if shmem.my_pe() == 1:
    print("old:", np.count_nonzero(out.numpy() == 0))
shmem.finalize()
