"""A PE packs its boundary again while its neighbour still gets the last one."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def kernel(face, ghost, ready):
    i, other = cuda.threadIdx.x, 1 - shmem.my_pe()
    for step in range(1, 4):
        at = 32 * (step % 2) if FIXED else 0
        face[at + i] = step  # <- 2
        cuda.syncthreads()
        if i == 0:
            shmem.quiet()
            shmem.signal_op(ready, step, shmem.SIGNAL_SET, other)
            shmem.signal_wait_until(ready, shmem.CMP_GE, step)
        cuda.syncthreads()
        shmem.get_block(ghost[32 * step - 32 : 32 * step], face[at : at + 32], other)  # <- 1


shmem.init()
face, ghost = shmem.zeros(64, dtype="float32"), shmem.zeros(96, dtype="float32")
kernel[1, 32](face, ghost, shmem.zeros(1, dtype="uint64"))
shmem.finalize()
