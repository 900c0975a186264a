"""A ring adds partial sums; the left neighbour sends the next one before this one is used."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 3


@shmem.jit
def kernel(box, total, flag, taken):
    me, n = shmem.my_pe(), shmem.n_pes()
    for step in range(1, n):
        shmem.put_signal(box, total, flag, step, shmem.SIGNAL_SET, (me + 1) % n)  # <- 1
        shmem.signal_wait_until(flag, shmem.CMP_GE, step)  # <- 3
        total[0] += box[0]  # <- 2
        if FIXED:
            shmem.signal_op(taken, step, shmem.SIGNAL_SET, (me + n - 1) % n)
            shmem.signal_wait_until(taken, shmem.CMP_GE, step)


shmem.init()
box, total = shmem.zeros(1, dtype="float32"), shmem.ones(1, dtype="float32")
kernel[1, 1](box, total, shmem.zeros(1, dtype="uint64"), shmem.zeros(1, dtype="uint64"))
shmem.finalize()
