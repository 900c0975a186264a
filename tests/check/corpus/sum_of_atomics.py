"""All PEs add to a sum on PE 0, which reads it when all have called sync, but not completed."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 3


@shmem.jit
def kernel(total, out):
    shmem.atomic_add(total, 1.5, 0)  # <- 1
    if FIXED:
        shmem.barrier_all()
    else:
        shmem.sync_all()
    if shmem.my_pe() == 0:
        out[0] = total[0]  # <- 2


shmem.init()
kernel[1, 1](shmem.zeros(1, dtype="float64"), shmem.zeros(1, dtype="float64"))
shmem.finalize()
