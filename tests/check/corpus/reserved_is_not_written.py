"""A queue's tail is moved to reserve a place; its owner reads as far as the tail."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 3


@shmem.jit
def kernel(queue, src, out, tail, written):
    if shmem.my_pe() > 0:
        place = shmem.atomic_fetch_add(tail, 2, 0)
        shmem.put(queue[place:], src, 0)  # <- 1
        shmem.fence()
        shmem.atomic_add(written, 2, 0)
    else:
        shmem.wait_until(written if FIXED else tail, shmem.CMP_GE, 4)
        for k in range(4):
            out[k] = queue[k]  # <- 2


shmem.init()
src, queue, out = shmem.ones(2), shmem.zeros(4), shmem.zeros(4)
kernel[1, 1](queue, src, out, shmem.zeros(1, dtype="int64"), shmem.zeros(1, dtype="int64"))
shmem.finalize()
