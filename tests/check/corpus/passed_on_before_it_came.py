"""A PE of a ring passes its box on without having waited for what comes into it."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 3


@shmem.jit
def kernel(box, flag):
    me, n = shmem.my_pe(), shmem.n_pes()
    if me > 0 and FIXED:
        shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)
    if me < n - 1:
        shmem.put_signal(box, box, flag, 1, shmem.SIGNAL_SET, me + 1)  # <- 1 <- 2


shmem.init()
kernel[1, 1](shmem.full(16, shmem.my_pe(), dtype="float32"), shmem.zeros(1, dtype="uint64"))
shmem.finalize()
