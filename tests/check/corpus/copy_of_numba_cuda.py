"""A program of numba.cuda alone: an array is copied to the device while a kernel reads it."""

import sys

import numpy as np
from numba import cuda

from gpushmem.simt.numba_cuda import patch_numba_cuda

FIXED = "fixed" in sys.argv

PES = 1

with patch_numba_cuda():

    @cuda.jit
    def add(a, out):
        out[cuda.grid(1)] += a[cuda.grid(1)]  # <- 1

    copying, adding = cuda.stream(), cuda.stream()
    values = cuda.pinned_array(64, "int32")
    a, out = cuda.to_device(np.zeros(64, "int32")), cuda.to_device(np.zeros(64, "int32"))
    for step in range(3):
        copying.synchronize()
        values[:] = step
        a.copy_to_device(values, stream=copying)  # <- 2
        if FIXED:
            copying.synchronize()
        add[2, 32, adding](a, out)
        if FIXED:
            adding.synchronize()
    total = out.copy_to_host()
    assert not FIXED or np.all(total == 0 + 1 + 2)
