"""The host fills an array, to which its neighbour may have put something."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2

shmem.init()
src, dst = shmem.ones(8, dtype="int32"), shmem.empty(8, dtype="int32")
dst.copy_from(0)  # <- 2
if FIXED:
    shmem.sync_all()
shmem.put(dst, src, 1 - shmem.my_pe())  # <- 1
shmem.finalize()
