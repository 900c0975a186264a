"""A PE that has its sum puts to the source of another one, which may still be adding."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def kernel(total, arg, two):
    shmem.reduce(shmem.TEAM_WORLD, total, arg, "sum")  # <- 2
    if FIXED:
        shmem.sync_all()
    if shmem.my_pe() == 1:
        shmem.put(arg, two, 0)  # <- 1


shmem.init()
arg, total, two = (shmem.ones(1, dtype="int32") for _ in range(3))
kernel[1, 1](total, arg, two)
shmem.finalize()
