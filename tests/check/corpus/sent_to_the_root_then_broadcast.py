"""PEs put their parts into what the root broadcasts, and meet by sync, which completes nothing."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 3


@shmem.jit
def kernel(table, src, copy):
    me = shmem.my_pe()
    shmem.put(table[2 * me :], src, 1)  # <- 1
    if FIXED:
        shmem.barrier_all()
    else:
        shmem.sync_all()
    shmem.broadcast(shmem.TEAM_WORLD, copy, table, 1)  # <- 2


shmem.init()
table, src, copy = (shmem.ones(k, dtype="int32") for k in (6, 2, 6))
kernel[1, 1](table, src, copy)
shmem.finalize()
