"""The next step's gradients are computed on one stream while the last ones are sent on another."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def compute(gradient, step):
    gradient[cuda.threadIdx.x] = step  # <- 2


@shmem.jit
def send(there, gradient, step):
    shmem.put_nbi_block(there[32 * step :], gradient, 1 - shmem.my_pe())  # <- 1
    shmem.quiet()


shmem.init()
gradient, there = shmem.zeros(32, dtype="float32"), shmem.zeros(96, dtype="float32")
first, second = shmem.stream(), shmem.stream()
for step in range(3):
    compute[1, 32, first](gradient, step)
    first.synchronize()
    send[1, 32, second](there, gradient, step)
    if FIXED:
        second.synchronize()
shmem.finalize()
