# A good report: race, put_signal and the read; missing: both run on one stream.
"""One stream waits for the signal, a kernel of another one uses the data."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def use(dst, out):
    out[cuda.threadIdx.x] = dst[cuda.threadIdx.x]  # <- 2


shmem.init()
src, dst, out = (shmem.ones(32, dtype="float32") for _ in range(3))
flag, other = shmem.zeros(1, dtype="uint64"), 1 - shmem.my_pe()
first, second = shmem.stream(), shmem.stream()
shmem.put_signal(dst, src, flag, 1, shmem.SIGNAL_SET, other, stream=first)  # <- 1
shmem.signal_wait_until(flag, shmem.CMP_EQ, 1, stream=first)
use[1, 32, first if FIXED else second](dst, out)
shmem.finalize()
