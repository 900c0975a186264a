"""The owner sets a counter to 0 for the next round, when other PEs may have added to it."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 3


@shmem.jit
def kernel(arrived):
    me = shmem.my_pe()
    if me == 0:
        shmem.atomic_set(arrived, 0, 0)  # <- 1
    if FIXED:
        shmem.barrier_all()
    if me > 0:
        shmem.atomic_add(arrived, 1, 0)  # <- 2


shmem.init()
kernel[1, 1](shmem.zeros(1, dtype="int32"))
shmem.finalize()
