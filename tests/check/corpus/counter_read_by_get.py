"""A counter is read with get, while other PEs add to it."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 3


@shmem.jit
def kernel(counter, out):
    me = shmem.my_pe()
    if me == 1:
        shmem.atomic_add(counter, 3, 0)  # <- 1
    elif me == 2:
        if FIXED:
            out[0] = shmem.atomic_fetch(counter, 0)
        else:
            shmem.get(out, counter, 0)  # <- 2


shmem.init()
kernel[1, 1](shmem.zeros(1, dtype="int32"), shmem.zeros(1, dtype="int32"))
shmem.finalize()
