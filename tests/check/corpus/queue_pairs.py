"""What a fence or quiet of another queue pair leaves as it is.

Each function is a program: the first argument is its name.
"""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv


def fence_of_one_queue_pair(pes=2):
    """Data on one queue pair, its flag on another: the fence is of the first alone."""

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

    qps = shmem.qp_create(2)
    src = shmem.full(64, shmem.my_pe(), dtype="float32")
    dst = shmem.zeros(64, dtype="float32")
    flag = shmem.zeros(1, dtype="uint64")
    kernel[1, 64](dst, src, flag, qps)


def fence_without_queue_pair(pes=2):
    """A fence that does not order what is put on a queue pair."""

    @shmem.jit
    def kernel(dst, src, flag, qps):
        i, other = cuda.threadIdx.x, 1 - shmem.my_pe()
        shmem.qp_put_block(dst, src, other, qps[0])  # <- 1
        if i == 0:
            if FIXED:
                shmem.qp_fence(other, qps)
            else:
                shmem.fence()
            shmem.qp_signal_op(flag, 1, shmem.SIGNAL_SET, other, qps[0])
            shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)
        cuda.syncthreads()
        src[i] = dst[i]  # <- 2

    qps = shmem.qp_create(1)
    src = shmem.full(64, shmem.my_pe(), dtype="float32")
    dst = shmem.zeros(64, dtype="float32")
    flag = shmem.zeros(1, dtype="uint64")
    kernel[1, 64](dst, src, flag, qps)


def get_on_any_queue_pair(pes=2):
    """What uses any queue pair is completed by a quiet of all."""

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

    qps = shmem.qp_create(2)
    src = shmem.full(64, shmem.my_pe(), dtype="float32")
    dst = shmem.zeros(64, dtype="float32")
    out = shmem.zeros(64, dtype="float32")
    kernel[1, 64](dst, src, out, qps)


def quiet_of_another_queue_pair(pes=2):
    """Each warp sends on a queue pair of its own; one of them completes those of the other."""

    @shmem.jit
    def kernel(dst, src, qps):
        i, other = cuda.threadIdx.x, 1 - shmem.my_pe()
        warp, lane = i // 32, i % 32
        mine = qps[warp : warp + 1] if FIXED else qps[1 - warp : 2 - warp]
        part = slice(32 * warp, 32 * warp + 32)
        shmem.qp_put_nbi_warp(dst[part], src[part], other, qps[warp])  # <- 1
        shmem.qp_quiet_warp(other, mine)
        src[32 * warp + lane] = 0  # <- 2

    qps = shmem.qp_create(2)
    src = shmem.full(64, shmem.my_pe(), dtype="float32")
    dst = shmem.zeros(64, dtype="float32")
    kernel[1, 64](dst, src, qps)


shmem.init()
globals()[sys.argv[1]]()
shmem.finalize()
