"""A ring in which every PE waits for a value that no PE sends; its report is in the README."""

from numba import cuda

import gpushmem as shmem


@shmem.jit
def shift(dst, src, signal):
    right = (shmem.my_pe() + 1) % shmem.n_pes()
    shmem.put_signal_block(dst, src, signal, 1, shmem.SIGNAL_SET, right)
    if cuda.threadIdx.x == 0:
        shmem.signal_wait_until(signal, shmem.CMP_EQ, 2)  # 1 is what is sent
    cuda.syncthreads()


shmem.init()
src = shmem.ones(1024, dtype="float32")
dst = shmem.zeros(1024, dtype="float32")
arrived = shmem.zeros(1, dtype="uint64")
shift[1, 128](dst, src, arrived)
shmem.barrier_all()
