"""The PEs of a team call sync for data that they have put without quiet."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 4


@shmem.jit
def kernel(dst, src, out, team):
    me, n = shmem.team_my_pe(team), shmem.team_n_pes(team)
    right = shmem.team_translate_pe(team, (me + 1) % n, shmem.TEAM_WORLD)
    shmem.iput(dst, src, 1, 2, 4, right)  # <- 1
    if FIXED:
        shmem.quiet()
    shmem.sync(team)
    out[0] = dst[3]  # <- 2


shmem.init()
src, dst = shmem.ones(8, dtype="float32"), shmem.zeros(4, dtype="float32")
_, team = shmem.team_split_2d(shmem.TEAM_WORLD, 2)
kernel[1, 1](dst, src, shmem.zeros(1, dtype="float32"), team)
shmem.finalize()
