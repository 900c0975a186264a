"""Hosts add to a counter that a kernel of its PE reads with a plain load."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def show(counter, out):
    out[0] = counter[0]  # <- 2


shmem.init()
counter, out = shmem.zeros(1, dtype="int64"), shmem.zeros(1, dtype="int64")
shmem.atomic_add(counter, 5, 1 - shmem.my_pe())  # <- 1
shmem.quiet()
if FIXED:
    shmem.sync_all()
show[1, 1](counter, out)
shmem.finalize()
