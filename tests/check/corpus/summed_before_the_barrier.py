"""A PE loads the sums of all PEs' arrays, which the others may not have filled yet."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 3


@shmem.jit
def kernel(out, x):
    x[cuda.threadIdx.x] = shmem.my_pe()  # <- 1
    if FIXED:
        shmem.barrier_all_block()
    else:
        cuda.syncthreads()
    shmem.multimem_reduce_block(out, x, shmem.TEAM_WORLD, "sum")  # <- 2


shmem.init()
x = shmem.zeros(32, "float32")
kernel[1, 32](shmem.device_array(32, "float32"), x)
shmem.finalize()
