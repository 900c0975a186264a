"""Two PEs claim a place with compare_swap, and both write to it, whoever has won."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 3


@shmem.jit
def kernel(owner, place, src):
    me = shmem.my_pe()
    if me > 0:
        before = shmem.atomic_compare_swap(owner, 0, me, 0)
        if before == 0 or not FIXED:
            shmem.put(place, src, 0)  # <- 1 <- 2


shmem.init()
kernel[1, 1](shmem.zeros(1, dtype="int32"), shmem.zeros(8), shmem.ones(8))
shmem.finalize()
