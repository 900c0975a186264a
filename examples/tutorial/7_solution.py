"""Send single elements around a ring: 16 blocks, in which each thread has some."""

from numba import cuda

import gpushmem as shmem

SIZE, BLOCKS = 4000, 16


@shmem.jit(collective=True)
def shift(dst, src, arrived):
    right = (shmem.my_pe() + 1) % shmem.n_pes()
    for k in range(cuda.grid(1), src.size, cuda.gridsize(1)):
        shmem.put_signal(dst[k:], src[k : k + 1], arrived[k:], 1, shmem.SIGNAL_SET, right)
    for k in range(cuda.grid(1), src.size, cuda.gridsize(1)):
        shmem.signal_wait_until(arrived[k:], shmem.CMP_EQ, 1)


with shmem.session() as world:
    me, n = world.my_pe, world.n_pes
    src, dst = shmem.full(SIZE, me, dtype="float32"), shmem.empty(SIZE, dtype="float32")
    arrived = shmem.zeros(SIZE, dtype="uint64")
    shift[BLOCKS, 128](dst, src, arrived)
    if me == 0:
        print(f"{SIZE} elements, {BLOCKS} blocks")
    assert (dst.numpy() == (me - 1) % n).all()
