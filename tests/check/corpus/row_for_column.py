"""Data go to the next PE of the column, and the barrier is that of the row."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 4


@shmem.jit
def kernel(dst, src, out, row, column):
    me = shmem.team_my_pe(column)
    below = shmem.team_translate_pe(column, 1 - me, shmem.TEAM_WORLD)
    shmem.put(dst, src, below)  # <- 1
    shmem.barrier(column if FIXED else row)
    out[0] = dst[0]  # <- 2


shmem.init()
src, dst, out = (shmem.ones(8, dtype="float32") for _ in range(3))
row, column = shmem.team_split_2d(shmem.TEAM_WORLD, 2)
kernel[1, 1](dst, src, out, row, column)
shmem.finalize()
