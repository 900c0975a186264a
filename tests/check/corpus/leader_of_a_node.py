"""The leader of a team sends on what its members have put, without a barrier of the team."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 4


@shmem.jit
def kernel(parts, own, far, team):
    me = shmem.my_pe()
    leader = me // 2 * 2
    shmem.put(parts[me % 2 :], own, leader)  # <- 1
    if FIXED:
        shmem.barrier(team)
    if me == leader:
        shmem.put(far, parts, (me + 2) % 4)  # <- 2


shmem.init()
parts, own, far = (shmem.ones(k, dtype="float32") for k in (2, 1, 2))
team, _ = shmem.team_split_2d(shmem.TEAM_WORLD, 2)
kernel[1, 1](parts, own, far, team)
shmem.finalize()
