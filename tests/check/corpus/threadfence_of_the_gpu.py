"""A PE stores to its neighbour and sets a flag there; threadfence is for threads of one GPU."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def kernel(dst, out, flag):
    other = 1 - shmem.my_pe()
    shmem.peer_array(dst, other)[0] = 5  # <- 1
    if FIXED:
        cuda.threadfence_system()
    else:
        cuda.threadfence()
    shmem.atomic_set(flag, 1, other)
    shmem.wait_until(flag, shmem.CMP_EQ, 1)
    out[0] = dst[0]  # <- 2


shmem.init()
dst, out = shmem.zeros(8, dtype="float32"), shmem.zeros(8, dtype="float32")
kernel[1, 1](dst, out, shmem.zeros(1, dtype="int32"))
shmem.barrier_all()
shmem.finalize()
