"""A tree of PEs passes a table down; an inner PE does so before its parent has sent it."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 4


@shmem.jit
def kernel(table, flag):
    i, me, n = cuda.threadIdx.x, shmem.my_pe(), shmem.n_pes()
    if me > 0 and i == 0 and (FIXED or 2 * me + 1 >= n):
        shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)
    cuda.syncthreads()
    for child in range(2 * me + 1, min(2 * me + 3, n)):
        shmem.put_signal_block(table, table, flag, 1, shmem.SIGNAL_SET, child)  # <- 1 <- 2


shmem.init()
table = shmem.full(32, shmem.my_pe(), dtype="int32")
kernel[1, 32](table, shmem.zeros(1, dtype="uint64"))
shmem.finalize()
