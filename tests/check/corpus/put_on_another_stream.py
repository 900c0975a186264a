# A good report: race, the store at 2 and put; missing: the host has to wait for the kernel, or both
# run on one stream.
"""A put is queued on one stream, the kernel that computes its source on another one."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def compute(a):
    a[cuda.threadIdx.x] = cuda.threadIdx.x  # <- 2


shmem.init()
a, b = shmem.zeros(32, dtype="float32"), shmem.zeros(32, dtype="float32")
first, second = shmem.stream(), shmem.stream()
compute[1, 32, first](a)
shmem.put(b, a, 1 - shmem.my_pe(), stream=first if FIXED else second)  # <- 1
shmem.finalize()
