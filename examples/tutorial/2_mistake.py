"""A mistake: the signal is sent by itself, and nothing orders it after the data."""

from numba import cuda

import gpushmem as shmem


@shmem.jit
def relay(box, arrived):
    me, n, i = shmem.my_pe(), shmem.n_pes(), cuda.threadIdx.x
    if me > 0:
        if i == 0:
            shmem.signal_wait_until(arrived, shmem.CMP_EQ, 1)
        cuda.syncthreads()
    box[i] += me
    cuda.syncthreads()
    if me < n - 1:
        shmem.put_block(box, box, me + 1)
        if i == 0:
            shmem.signal_op(arrived, 1, shmem.SIGNAL_SET, me + 1)


with shmem.session() as world:
    box = shmem.zeros(64, dtype="int32")
    arrived = shmem.zeros(1, dtype="uint64")
    relay[1, 64](box, arrived)
    print(f"PE {world.my_pe}: the sum so far is {box.numpy()[0]}")
