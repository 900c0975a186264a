# A good report: memory that was freed at 1 is written at 2 (it belongs to `b` now).
"""A view of freed memory, shared with another library, is written."""

import sys

import numpy as np

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2

shmem.init()
a = shmem.zeros(8, dtype="float64")
view = np.asarray(a)
if FIXED:
    view[:] = 1
shmem.free(a)  # <- 1
b = shmem.zeros(8, dtype="float64")
if not FIXED:
    view[:] = 1  # <- 2
b.numpy()
shmem.finalize()
