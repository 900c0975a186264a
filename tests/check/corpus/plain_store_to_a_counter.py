"""The owner of a counter resets it with a plain store."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def kernel(counter, ready):
    other = 1 - shmem.my_pe()
    counter[0] = 0  # <- 2
    if FIXED:
        shmem.sync_all()
    shmem.atomic_add(counter, 1, other)  # <- 1


shmem.init()
kernel[1, 1](shmem.zeros(1, dtype="int64"), 0)
shmem.finalize()
