"""A program of numba.cuda alone: half of a block waits at another barrier than the other half."""

import sys

import numpy as np
from numba import cuda

from gpushmem.simt.numba_cuda import patch_numba_cuda

FIXED = "fixed" in sys.argv

PES = 1

with patch_numba_cuda():

    @cuda.jit
    def swap(x):
        t = cuda.threadIdx.x
        shared = cuda.shared.array(64, np.int32)
        shared[t] = x[t]
        if FIXED:
            cuda.syncthreads()
        elif t < 32:
            cuda.syncthreads()  # <- 1
        else:
            cuda.syncthreads()  # <- 2
        x[t] = shared[63 - t]

    x = cuda.to_device(np.arange(64, dtype=np.int32))
    swap[1, 64](x)
    assert np.all(x.copy_to_host() == np.arange(64)[::-1])
