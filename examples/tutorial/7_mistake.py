"""A mistake: more blocks that wait for others than fit on a GPU."""

from numba import cuda

import gpushmem as shmem

BLOCKS = 4000


@shmem.jit(collective=True)
def shift(dst, src, arrived):
    b = cuda.blockIdx.x
    right = (shmem.my_pe() + 1) % shmem.n_pes()
    one = src[b : b + 1]
    shmem.put_signal_block(dst[b:], one, arrived[b:], 1, shmem.SIGNAL_SET, right)
    if cuda.threadIdx.x == 0:
        shmem.signal_wait_until(arrived[b:], shmem.CMP_EQ, 1)


with shmem.session() as world:
    src, dst = shmem.ones(BLOCKS), shmem.zeros(BLOCKS)
    arrived = shmem.zeros(BLOCKS, dtype="uint64")
    shift[BLOCKS, 128](dst, src, arrived)
