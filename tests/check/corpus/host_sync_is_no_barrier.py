"""Hosts put and call sync_all, which completes nothing."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2

shmem.init()
src, dst = shmem.ones(8, dtype="int32"), shmem.zeros(8, dtype="int32")
shmem.iput(dst, src, 2, 1, 4, 1 - shmem.my_pe())  # <- 1
if FIXED:
    shmem.quiet()
shmem.sync_all()
src.copy_from(dst.numpy())  # <- 2
shmem.finalize()
