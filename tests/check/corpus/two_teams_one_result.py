"""Two blocks reduce along rows and columns, to one array."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 4


@shmem.jit
def kernel(dst, src, row, column):
    team = row if cuda.blockIdx.x == 0 else column
    at = 4 * cuda.blockIdx.x if FIXED else 0
    shmem.reduce(team, dst[at : at + 4], src, "sum")  # <- 1 <- 2


shmem.init()
dst, src = shmem.zeros(8, dtype="int64"), shmem.ones(4, dtype="int64")
kernel[2, 1](dst, src, *shmem.team_split_2d(shmem.TEAM_WORLD, 2))
shmem.finalize()
