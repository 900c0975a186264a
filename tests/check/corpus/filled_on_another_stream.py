"""A stream is waited for before an output is filled on it, which another stream then writes."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 1


@shmem.jit
def fill(out):
    out[cuda.threadIdx.x] = -1  # <- 1


@shmem.jit
def combine(out, parts):
    i = cuda.threadIdx.x
    out[i] = parts[i] + parts[32 + i]  # <- 2


shmem.init()
out, parts = shmem.device_array(32, "float32"), shmem.ones(64, dtype="float32")
compute, communicate = shmem.stream(), shmem.stream()
if not FIXED:
    compute.synchronize()
fill[1, 32, compute](out)
if FIXED:
    compute.synchronize()
combine[1, 32, communicate](out, parts)
shmem.finalize()
