"""Reads of what another PE has put since the last ones, with a wait between, or a loop of g."""

import sys

import numpy as np
from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv
WAYS = "load", "g", "get", "iget", "multimem_reduce"
WAY = next(k for k, way in enumerate(WAYS) if way in sys.argv)


@shmem.jit(device=True)
def read(data, copy, i):
    if WAY == 0:
        return data[i]
    if WAY == 1:
        return shmem.g(data[i:], 1)
    if WAY == 2:
        shmem.get(copy[i : i + 1], data[i : i + 1], 1)
    elif WAY == 4:  # of PE 0 it has nothing
        shmem.multimem_reduce(copy[i : i + 1], data[i : i + 1], shmem.TEAM_WORLD, "sum")
    else:
        shmem.iget(copy[i:], data[i:], 1, 1, 1, 1)
    return copy[i]


@shmem.jit
def kernel(data, copy, out, flag, ack):
    i = cuda.threadIdx.x
    other = 1 - shmem.my_pe()
    if shmem.my_pe() == 0:
        if i == 0:
            shmem.signal_wait_until(ack, shmem.CMP_EQ, out.size)
            shmem.put_signal(data, out, flag, 1, shmem.SIGNAL_SET, other)
    else:
        before = read(data, copy, i)
        shmem.signal_op(ack, 1, shmem.SIGNAL_ADD, other)
        if FIXED:
            shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)
        else:
            while shmem.g(flag, 1) != 1:
                cuda.nanosleep(1000)
        out[i] = before + read(data, copy, i)


shmem.init()
(data, copy), out = (shmem.zeros(16, "int64") for _ in range(2)), shmem.ones(16, "int64")
flag, ack = shmem.zeros(1, "uint64"), shmem.zeros(1, "uint64")
kernel[1, 16](data, copy, out, flag, ack)
shmem.barrier_all()
if shmem.my_pe() == 1:
    print("old:", np.count_nonzero(out.numpy() == 0))
shmem.finalize()
