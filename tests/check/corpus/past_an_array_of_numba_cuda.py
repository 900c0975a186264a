"""A program of numba.cuda alone: the last block has more threads than the array has elements."""

import sys

import numpy as np
from numba import cuda

from gpushmem.simt.numba_cuda import patch_numba_cuda

FIXED = "fixed" in sys.argv

PES = 1

with patch_numba_cuda():

    @cuda.jit
    def fill(x):
        i = cuda.grid(1)
        if not FIXED or i < x.size:
            x[i] = i  # <- 1  # <- 2

    x = cuda.device_array(100, np.int32)
    fill[4, 32](x)
    assert np.all(x.copy_to_host() == np.arange(100))
