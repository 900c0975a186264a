"""PEs draw numbers from a counter that nobody has set to zero."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 3


@shmem.jit
def kernel(slots, counter):
    mine = shmem.atomic_fetch_inc(counter, 0)  # <- 1
    shmem.p(slots[mine % 3 :], shmem.my_pe(), 0)


shmem.init()
slots, counter = shmem.zeros(3, dtype="int64"), shmem.empty(1, dtype="int64")
if FIXED:
    counter.copy_from(0)
    shmem.barrier_all()
kernel[1, 1](slots, counter)
shmem.barrier_all()
shmem.finalize()
