# A good report: race, the store at 2 and iget_warp; missing: a barrier. The fixed program is right:
# sync_all_block is a barrier of the block, too, so all its threads have stored.
"""A PE gets a column of a matrix whose rows its owner's threads are still writing."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def kernel(matrix, column):
    i = cuda.threadIdx.x
    for k in range(4):
        matrix[4 * i + k] = k  # <- 2
    if FIXED:
        shmem.sync_all_block()
    shmem.iget_warp(column, matrix[1:], 1, 4, 32, 1 - shmem.my_pe())  # <- 1


shmem.init()
kernel[1, 32](shmem.zeros(128, dtype="int32"), shmem.zeros(32, dtype="int32"))
shmem.finalize()
