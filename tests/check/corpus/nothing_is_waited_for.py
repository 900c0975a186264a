"""The reader does not wait for the data at all."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def send(dst, src):
    shmem.put_block(dst, src, 1 - shmem.my_pe())  # <- 1


@shmem.jit
def use(dst, src):
    i = cuda.threadIdx.x
    src[i] = dst[i]  # <- 2


shmem.init()
src = shmem.full(64, shmem.my_pe(), dtype="float32")
dst = shmem.zeros(64, dtype="float32")
out = shmem.zeros(64, dtype="float32")
send[1, 64](dst, src)
if FIXED:
    shmem.barrier_all()
use[1, 64](dst, out)
shmem.finalize()
