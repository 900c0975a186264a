"""How often data come after a signal of a thread that has waited for who put them, or has not."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED, TURNS = "fixed" in sys.argv, 32


@shmem.jit
def kernel(dst, signal, late):
    bars, t, pe = cuda.shared.array(1, "uint64"), cuda.threadIdx.x, 1 - shmem.my_pe()
    if t == 0:
        shmem.mbarrier_init(bars, 0, 1)
    cuda.syncthreads()
    for k in range(TURNS):
        if t == 0:
            shmem.p(dst[k:], k + 1, pe)
            shmem.mbarrier_arrive(bars, 0)
        else:
            if FIXED:
                shmem.mbarrier_wait(bars, 0, k & 1)
            shmem.quiet()
            shmem.signal_op(signal, k + 1, shmem.SIGNAL_SET, pe)
            shmem.signal_wait_until(signal, shmem.CMP_GE, k + 1)
            late[0] += shmem.g(dst[k:], shmem.my_pe()) != k + 1
        cuda.syncthreads()


shmem.init()
dst, signal, late = shmem.zeros(TURNS), shmem.zeros(1, "uint64"), shmem.zeros(1, "int32")
kernel[1, 2](dst, signal, late)
print(late.numpy()[0])
shmem.finalize()
