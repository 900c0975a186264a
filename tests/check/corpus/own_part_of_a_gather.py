"""A ring sends its own part on before all threads have copied it to its place."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 3


@shmem.jit
def kernel(parts, own, flags):
    i, me, n = cuda.threadIdx.x, shmem.my_pe(), shmem.n_pes()
    parts[32 * me + i] = own[i]  # <- 2
    if FIXED:
        cuda.syncthreads()
    for step in range(n - 1):
        k = (me + n - step) % n
        part = parts[32 * k : 32 * k + 32]
        right = (me + 1) % n
        shmem.put_signal_block(part, part, flags[k:], 1, shmem.SIGNAL_SET, right)  # <- 1
        if i == 0:
            shmem.signal_wait_until(flags[(me + n - step - 1) % n :], shmem.CMP_EQ, 1)
        cuda.syncthreads()


shmem.init()
parts, own = shmem.zeros(96, dtype="float32"), shmem.ones(32, dtype="float32")
kernel[1, 32](parts, own, shmem.zeros(3, dtype="uint64"))
shmem.finalize()
