"""Two PEs add to a number of a third one with g and put."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 3


@shmem.jit
def kernel(total, mine):
    me = shmem.my_pe()
    if me > 0:
        if FIXED:
            shmem.atomic_add(total, me, 0)
        else:
            mine[0] = shmem.g(total, 0) + me  # <- 1
            shmem.put(total, mine, 0)  # <- 2


shmem.init()
kernel[1, 1](shmem.zeros(1, dtype="int32"), shmem.zeros(1, dtype="int32"))
shmem.finalize()
