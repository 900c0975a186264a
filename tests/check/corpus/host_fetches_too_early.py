"""A host gets an array that its neighbour's host is still filling."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 3

shmem.init()
me, n = shmem.my_pe(), shmem.n_pes()
a, b = shmem.zeros(8, dtype="float32"), shmem.zeros(8, dtype="float32")
a.copy_from(me)  # <- 2
if FIXED:
    shmem.sync_all()
shmem.get(b, a, (me + 1) % n)  # <- 1
shmem.finalize()
