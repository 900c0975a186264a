"""A kernel takes differences of neighbours in device memory; the last element has none."""

import sys

import numpy as np
from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2
N = 50


@shmem.jit
def kernel(out, values):
    i = cuda.grid(1)
    if i < N - FIXED:
        out[i] = values[i + 1] - values[i]  # <- 1 <- 2


shmem.init()
values = shmem.to_device(np.arange(N, dtype="float32"))
out = shmem.device_array(N, "float32")
for _ in range(3):
    again = shmem.to_device(np.zeros((2, 3), "complex64"))  # freed, and allocated again
    kernel[2, 32](out, values)
shmem.finalize()
