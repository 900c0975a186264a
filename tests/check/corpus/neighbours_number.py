"""Each PE stores a number, and g reads the neighbour's before it is there."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 3


@shmem.jit
def kernel(numbers, out):
    me, n = shmem.my_pe(), shmem.n_pes()
    numbers[0] = 10 * me  # <- 2
    if FIXED:
        shmem.sync_all()
    out[0] = shmem.g(numbers, (me + 1) % n)  # <- 1


shmem.init()
kernel[1, 1](shmem.zeros(1, dtype="int32"), shmem.zeros(1, dtype="int32"))
shmem.finalize()
