"""A kernel waits for the data, one on another stream uses them."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def exchange(dst, src, flag):
    shmem.put_signal(dst, src, flag, 1, shmem.SIGNAL_SET, 1 - shmem.my_pe())  # <- 1
    shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)


@shmem.jit
def use(dst, out):
    out[cuda.threadIdx.x] = dst[cuda.threadIdx.x]  # <- 2


shmem.init()
src, dst, out = (shmem.ones(32, dtype="float32") for _ in range(3))
first, second = shmem.stream(), shmem.stream()
exchange[1, 1, first](dst, src, shmem.zeros(1, dtype="uint64"))
if FIXED:
    first.synchronize()
use[1, 32, second](dst, out)
shmem.finalize()
