"""A PE gets rows from both neighbours, and waits for only one of them."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 3


@shmem.jit
def kernel(grid, new, flags):
    i, me, n = cuda.threadIdx.x, shmem.my_pe(), shmem.n_pes()
    above, below = (me + n - 1) % n, (me + 1) % n
    shmem.put_signal_block(grid[96:], grid[32:64], flags, 1, shmem.SIGNAL_SET, above)
    shmem.put_signal_block(grid[:32], grid[64:96], flags[1:], 1, shmem.SIGNAL_SET, below)  # <- 1
    if i < (2 if FIXED else 1):
        shmem.signal_wait_until(flags[i:], shmem.CMP_EQ, 1)
    cuda.syncthreads()
    new[i] = grid[64 + i] + grid[96 + i]
    new[32 + i] = grid[i] + grid[32 + i]  # <- 2


shmem.init()
grid, new = shmem.ones(128, dtype="float32"), shmem.ones(64, dtype="float32")
kernel[1, 32](grid, new, shmem.zeros(2, dtype="uint64"))
shmem.finalize()
