"""A host reads what another host has put, without a barrier."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2

shmem.init()
src, dst = shmem.ones(4, dtype="float32"), shmem.zeros(4, dtype="float32")
shmem.put(dst, src, 1 - shmem.my_pe())  # <- 1
if FIXED:
    shmem.barrier_all()
src.copy_from(dst.numpy())  # <- 2
shmem.finalize()
