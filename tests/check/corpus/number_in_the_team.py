"""A team's barrier completes what its members have put to each other, but this went elsewhere."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 4


@shmem.jit
def kernel(dst, src, out, team):
    me = shmem.team_my_pe(team)
    pe = 1 - me
    if FIXED:
        pe = shmem.team_translate_pe(team, pe, shmem.TEAM_WORLD)
    if shmem.my_pe() > 1:
        shmem.put(dst, src, pe)  # <- 1
    shmem.barrier(team)
    out[0] = dst[0]  # <- 2


shmem.init()
src, dst, out = (shmem.ones(8, dtype="int32") for _ in range(3))
team, _ = shmem.team_split_2d(shmem.TEAM_WORLD, 2)
kernel[1, 1](dst, src, out, team)
shmem.finalize()
