"""A PE counts with a plain addition in the counter to which another one adds atomically."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def kernel(hits):
    me = shmem.my_pe()
    for _ in range(4):
        if me == 0 and not FIXED:
            hits[0] += 1  # <- 2
        else:
            shmem.atomic_inc(hits, 0)  # <- 1


shmem.init()
kernel[1, 1](shmem.zeros(1, dtype="uint64"))
shmem.finalize()
