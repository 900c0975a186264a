"""A program of numba.cuda alone: a kernel reads what another one writes on another stream.

Its arrays come and go; those that get the memory of others have nothing to do with them.
"""

import sys

import numpy as np
from numba import cuda

from gpushmem.simt.numba_cuda import patch_numba_cuda

FIXED = "fixed" in sys.argv

PES = 1

with patch_numba_cuda():

    @cuda.jit
    def fill(a):
        a[cuda.grid(1)] = 1  # <- 1

    @cuda.jit
    def double(a, out):
        out[cuda.grid(1)] = 2 * a[cuda.grid(1)]  # <- 2

    for _ in range(4):
        first, second, written = cuda.stream(), cuda.stream(), cuda.event()
        a, out = cuda.device_array(64, "int32"), cuda.device_array(64, "int32")
        fill[2, 32, first](a)
        written.record(first)
        if FIXED:
            written.wait(second)
        double[2, 32, second](a, out)
        result = out.copy_to_host(stream=second)
        assert not FIXED or np.all(result == 2)
        del a, out
        cuda.current_context().memory_manager.deallocations.clear()
