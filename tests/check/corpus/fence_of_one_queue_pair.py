"""Data on one queue pair, its flag on another: the fence is of the first alone."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def kernel(dst, src, flag, qps):
    i, other = cuda.threadIdx.x, 1 - shmem.my_pe()
    shmem.qp_put_block(dst, src, other, qps[0])  # <- 1
    if i == 0:
        shmem.qp_fence(other, qps if FIXED else qps[:1])
        shmem.qp_signal_op(flag, 1, shmem.SIGNAL_SET, other, qps[1])
        shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)
    cuda.syncthreads()
    src[i] = dst[i]  # <- 2


shmem.init()
qps = shmem.qp_create(2)
src = shmem.full(64, shmem.my_pe(), dtype="float32")
dst = shmem.zeros(64, dtype="float32")
flag = shmem.zeros(1, dtype="uint64")
kernel[1, 64](dst, src, flag, qps)
shmem.finalize()
