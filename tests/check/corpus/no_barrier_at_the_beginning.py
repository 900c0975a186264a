"""A kernel adds what the kernels before it have filled on all PEs, which may be late."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def fill(arg):
    arg[cuda.threadIdx.x] = shmem.my_pe()  # <- 2


@shmem.jit
def add(total, arg):
    i = cuda.threadIdx.x
    if FIXED:
        shmem.sync_all_block()
    total[i] = arg[i] + shmem.peer_array(arg, 1 - shmem.my_pe())[i]  # <- 1


shmem.init()
arg, total = shmem.zeros(32, dtype="float32"), shmem.zeros(32, dtype="float32")
fill[1, 32](arg)
add[1, 32](total, arg)
shmem.finalize()
