"""What an array was left with when it was freed is not in the next one."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def kernel(counts, src):
    for k in range(src.size):
        counts[0] += src[k]


@shmem.jit
def sum_of(counts, out):
    for k in range(counts.size):
        out[0] += counts[k]  # <- 1


shmem.init()
src, out = shmem.ones(8, dtype="int64"), shmem.zeros(1, dtype="int64")
counts = shmem.zeros(4, dtype="int64")
kernel[1, 1](counts, src)
shmem.free(counts)
counts = (shmem.zeros if FIXED else shmem.empty)(4, dtype="int64")
sum_of[1, 1](counts, out)
shmem.finalize()
