"""The reader is not in the team whose barrier completes the data."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 3


@shmem.jit
def kernel(dst, src, out, team):
    me = shmem.my_pe()
    if me == 0:
        shmem.put(dst, src, 2)  # <- 1
    if FIXED:
        shmem.barrier_all()
    elif me < 2:
        shmem.barrier(team)
    if me == 2:
        out[0] = dst[0]  # <- 2


shmem.init()
src, dst = shmem.ones(8, dtype="float32"), shmem.zeros(8, dtype="float32")
pair = shmem.team_split_strided(shmem.TEAM_WORLD, 0, 1, 2)
kernel[1, 1](dst, src, shmem.zeros(1, dtype="float32"), pair)
shmem.finalize()
