"""Two numbers are written behind the end of an array."""

import numpy as np
from numba import cuda

import gpushmem as shmem


@shmem.jit
def kernel(a):
    a[cuda.threadIdx.x] = 1


shmem.init()
first = shmem.empty(10, "float32")
assert np.isnan(first.numpy()).all()
kernel[1, 12](first)
shmem.free(first)
