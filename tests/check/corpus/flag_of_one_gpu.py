"""A flag on another PE is set by cuda.atomic, which is atomic for the threads of its own GPU."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def kernel(dst, out, flag):
    other = 1 - shmem.my_pe()
    shmem.peer_array(dst, other)[0] = 5
    cuda.threadfence_system()
    if FIXED:
        shmem.atomic_set(flag, 1, other)
    else:
        cuda.atomic.exch(shmem.peer_array(flag, other), 0, 1)  # <- 1
    shmem.wait_until(flag, shmem.CMP_EQ, 1)  # <- 2
    out[0] = dst[0]


shmem.init()
dst, out = shmem.zeros(8, dtype="float32"), shmem.zeros(8, dtype="float32")
kernel[1, 1](dst, out, shmem.zeros(1, dtype="int32"))
shmem.barrier_all()
shmem.finalize()
