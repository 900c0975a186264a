"""A sum replaces its argument in place, while another PE still gets the old values."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def kernel(a, old):
    shmem.get_block(old, a, 1 - shmem.my_pe())  # <- 1
    if FIXED:
        shmem.sync_all_block()
    shmem.reduce_block(shmem.TEAM_WORLD, a, a, "sum")  # <- 2


shmem.init()
kernel[1, 32](shmem.ones(32, dtype="float32"), shmem.zeros(32, dtype="float32"))
shmem.finalize()
