"""What uses any queue pair is completed by a quiet of all."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def kernel(dst, src, out, qps):
    i, other = cuda.threadIdx.x, 1 - shmem.my_pe()
    shmem.qp_get_nbi_block(dst, src, other, shmem.QP_ANY)  # <- 1
    if i == 0:
        if FIXED:
            shmem.quiet()
        else:
            shmem.qp_quiet(other, qps)
    cuda.syncthreads()
    out[i] = dst[i]  # <- 2


shmem.init()
qps = shmem.qp_create(2)
src = shmem.full(64, shmem.my_pe(), dtype="float32")
dst = shmem.zeros(64, dtype="float32")
out = shmem.zeros(64, dtype="float32")
kernel[1, 64](dst, src, out, qps)
shmem.finalize()
