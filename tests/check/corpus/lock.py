# A good report: race, nothing orders the two puts; in the fixed program the lock does.
"""PEs add to a number, which a lock that is made of atomic operations protects."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 3


@shmem.jit
def kernel(number, lock, mine):
    me = shmem.my_pe()
    while FIXED and shmem.atomic_compare_swap(lock, 0, me + 1, 0) != 0:
        pass
    shmem.get(mine, number, 0)  # <- 1
    mine[0] += 1
    shmem.put(number, mine, 0)  # <- 2
    shmem.quiet()
    if FIXED:
        shmem.atomic_set(lock, 0, 0)


shmem.init()
number, mine = shmem.zeros(1, dtype="int64"), shmem.zeros(1, dtype="int64")
kernel[1, 1](number, shmem.zeros(1, dtype="int64"), mine)
shmem.finalize()
