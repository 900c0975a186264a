"""A PE waits for one arrival of each PE, but has counted its own before the others' data."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 3


@shmem.jit
def kernel(parts, src, out, arrived):
    me, n = shmem.my_pe(), shmem.n_pes()
    for pe in range(n):
        shmem.put_signal(parts[me:], src, arrived, 1, shmem.SIGNAL_ADD, pe)  # <- 1
    shmem.signal_wait_until(arrived, shmem.CMP_GE, n if FIXED else n - 1)
    for pe in range(n):
        out[0] += parts[pe]  # <- 2


shmem.init()
src, parts = shmem.ones(1, dtype="float32"), shmem.zeros(3, dtype="float32")
kernel[1, 1](parts, src, shmem.zeros(1, dtype="float32"), shmem.zeros(1, dtype="uint64"))
shmem.finalize()
