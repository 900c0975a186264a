"""PEs add to numbers on PE 0 under a lock, and give it back before they have arrived."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 3


@shmem.jit
def kernel(lock, total, mine):
    while shmem.atomic_compare_swap(lock, 0, 1, 0) != 0:
        pass
    shmem.get(mine, total, 0)  # <- 2
    for i in range(mine.size):
        mine[i] += 1.0
    shmem.put(total, mine, 0)  # <- 1
    if FIXED:
        shmem.quiet()
    shmem.atomic_set(lock, 0, 0)


shmem.init()
lock, total, mine = shmem.zeros(1, "int32"), shmem.zeros(4, "float32"), shmem.zeros(4, "float32")
kernel[1, 1](lock, total, mine)
shmem.barrier_all()
assert shmem.my_pe() != 0 or total.numpy()[0] == PES
shmem.finalize()
