"""A PE stores its halo to its neighbour's array, one element past the end."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2
N = 32


@shmem.jit
def kernel(field):
    left = shmem.peer_array(field, 1 - shmem.my_pe())
    for k in range(4):
        left[N - 4 + k + (0 if FIXED else 1)] = k  # <- 1 <- 2


shmem.init()
field = shmem.zeros(N, dtype="int64")
other = shmem.zeros(N, dtype="int64")
kernel[1, 1](field)
shmem.barrier_all()
shmem.finalize()
