"""Hand an array from PE to PE and back: PE 0 waits for the sum of all."""

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
    shmem.put_signal_block(box, box, arrived, 1, shmem.SIGNAL_SET, (me + 1) % n)
    if me == 0 and i == 0:
        shmem.signal_wait_until(arrived, shmem.CMP_EQ, 1)


with shmem.session() as world:
    me, n = world.my_pe, world.n_pes
    box = shmem.zeros(64, dtype="int32")
    arrived = shmem.zeros(1, dtype="uint64")
    relay[1, 64](box, arrived)
    if me == 0:
        print(f"PE 0: the sum of all is {box.numpy()[0]}")
        assert (box.numpy() == n * (n - 1) // 2).all()
