"""Hand an array from PE to PE: each waits for it, adds its number, and sends it on.

gpushmem run -n 4 examples/tutorial/2_signal.py
"""

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
        shmem.put_signal_block(box, box, arrived, 1, shmem.SIGNAL_SET, me + 1)


with shmem.session() as world:
    me, n = world.my_pe, world.n_pes
    box = shmem.zeros(64, dtype="int32")
    arrived = shmem.zeros(1, dtype="uint64")
    relay[1, 64](box, arrived)
    print(f"PE {me}: the sum so far is {box.numpy()[0]}")
    assert (box.numpy() == me * (me + 1) // 2).all()
