"""Each warp sends on a queue pair of its own; one of them completes those of the other."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def kernel(dst, src, qps):
    i, other = cuda.threadIdx.x, 1 - shmem.my_pe()
    warp, lane = i // 32, i % 32
    mine = qps[warp : warp + 1] if FIXED else qps[1 - warp : 2 - warp]
    part = slice(32 * warp, 32 * warp + 32)
    shmem.qp_put_nbi_warp(dst[part], src[part], other, qps[warp])  # <- 1
    shmem.qp_quiet_warp(other, mine)
    src[32 * warp + lane] = 0  # <- 2


shmem.init()
qps = shmem.qp_create(2)
src = shmem.full(64, shmem.my_pe(), dtype="float32")
dst = shmem.zeros(64, dtype="float32")
kernel[1, 64](dst, src, qps)
shmem.finalize()
