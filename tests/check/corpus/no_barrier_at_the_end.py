# A good report: race, the loads at 1 and the store at 2; missing: PE 0 has to tell PE 1.
"""A kernel adds its peers' arguments and ends; the next one writes an argument still being read."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 3


@shmem.jit
def fill(arg, step):
    arg[cuda.threadIdx.x] = step  # <- 2


@shmem.jit
def add(total, arg, step):
    i = cuda.threadIdx.x
    shmem.sync_all_block()
    for pe in range(shmem.n_pes()):
        total[32 * step + i] += shmem.peer_array(arg, pe)[i]  # <- 1
    if FIXED:
        cuda.syncthreads()
        shmem.sync_all_block()


shmem.init()
arg, total = shmem.zeros(32, dtype="float32"), shmem.zeros(64, dtype="float32")
for step in range(2):
    fill[1, 32](arg, step)
    add[1, 32](total, arg, step)
shmem.finalize()
