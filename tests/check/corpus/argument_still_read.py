"""A kernel adds its peer's argument and ends; the next one changes an argument still being read."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def fill(arg, step):
    arg[cuda.threadIdx.x] = step  # <- 2


@shmem.jit
def add(total, arg):
    i = cuda.threadIdx.x
    shmem.barrier_all_block()
    total[i] = arg[i] + shmem.peer_array(arg, 1 - shmem.my_pe())[i]  # <- 1
    if FIXED:
        cuda.syncthreads()
        shmem.sync_all_block()


shmem.init()
arg, total = shmem.zeros(32, dtype="float32"), shmem.zeros(32, dtype="float32")
fill[1, 32](arg, 1)
shmem.synchronize()
add[1, 32](total, arg)
fill[1, 32](arg, 2)
shmem.finalize()
