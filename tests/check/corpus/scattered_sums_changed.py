"""A PE puts into its neighbour's part of a sum, which is still being made."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def kernel(part, src, bonus):
    other = 1 - shmem.my_pe()
    shmem.reducescatter(shmem.TEAM_WORLD, part, src, "sum")  # <- 2
    if FIXED:
        shmem.sync_all()
    shmem.put(part, bonus, other)  # <- 1


shmem.init()
part, src, bonus = (shmem.ones(k, dtype="float64") for k in (3, 6, 3))
kernel[1, 1](part, src, bonus)
shmem.finalize()
