"""The owner clears its flags in a kernel, when the neighbour may have set them already."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def clear(flags):
    flags[cuda.threadIdx.x] = 0  # <- 2


@shmem.jit
def send(dst, src, flags):
    other = 1 - shmem.my_pe()
    shmem.put_signal(dst, src, flags, 1, shmem.SIGNAL_SET, other)  # <- 1


shmem.init()
src, dst = shmem.ones(8, dtype="float32"), shmem.zeros(8, dtype="float32")
flags = shmem.empty(4, dtype="uint64")
clear[1, 4](flags)
if FIXED:
    shmem.barrier_all()
send[1, 1](dst, src, flags)
shmem.finalize()
