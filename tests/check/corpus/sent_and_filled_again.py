# A good report: race, put_signal and the store at 2; missing: the host has to wait, or both run on
# one stream.
"""A put_signal is queued on a stream, and a kernel of another one fills its source again."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def fill(a):
    a[cuda.threadIdx.x] = 1  # <- 2


shmem.init()
src, dst = shmem.zeros(32, dtype="float32"), shmem.zeros(32, dtype="float32")
flag, other = shmem.zeros(1, dtype="uint64"), 1 - shmem.my_pe()
sending, computing = shmem.stream(), shmem.stream()
shmem.put_signal(dst, src, flag, 1, shmem.SIGNAL_SET, other, stream=sending)  # <- 1
if FIXED:
    sending.synchronize()
fill[1, 32, computing](src)
shmem.finalize()
