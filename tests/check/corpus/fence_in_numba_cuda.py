"""A kernel of numba.cuda that calls operations: the flag may arrive before the data."""

import sys

from numba import cuda

import gpushmem as shmem
from gpushmem.simt.numba_cuda import patch_numba_cuda

FIXED = "fixed" in sys.argv

PES = 2

shmem.init()
data, copy = shmem.zeros(4, dtype="int64"), shmem.zeros(4, dtype="int64")
flag = shmem.zeros(1, dtype="uint64")

with patch_numba_cuda():

    @cuda.jit
    def exchange(data, copy, flag):
        if shmem.my_pe() == 0:
            shmem.put(data, copy, 1)  # <- 1
            if FIXED:
                shmem.fence()
            shmem.signal_op(flag, 1, shmem.SIGNAL_SET, 1)
        else:
            shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)
            copy[0] = data[0]  # <- 2

    exchange[1, 1](data, copy, flag)
    cuda.synchronize()

shmem.finalize()
