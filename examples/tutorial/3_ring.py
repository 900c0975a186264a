"""Send arrays around a ring: with a barrier after each round, then without barriers.

gpushmem run -n 4 examples/tutorial/3_ring.py
"""

from numba import cuda

import gpushmem as shmem

SIZE = 64


@shmem.jit
def shift(boxes, k):
    right = (shmem.my_pe() + 1) % shmem.n_pes()
    shmem.put_block(boxes[k], boxes[k - 1], right)


@shmem.jit
def around(boxes, arrived):
    n, i = shmem.n_pes(), cuda.threadIdx.x
    right = (shmem.my_pe() + 1) % n
    for k in range(1, n):
        shmem.put_signal_block(boxes[k], boxes[k - 1], arrived[k:], 1, shmem.SIGNAL_SET, right)
        if i == 0:
            shmem.signal_wait_until(arrived[k:], shmem.CMP_EQ, 1)
        cuda.syncthreads()


with shmem.session() as world:
    me, n = world.my_pe, world.n_pes
    wanted = [(me - k) % n for k in range(n)]  # box k comes from k PEs to the left

    boxes = shmem.full((n, SIZE), me, dtype="int32")
    for k in range(1, n):
        shift[1, SIZE](boxes, k)
        shmem.barrier_all()
    assert boxes.numpy()[:, 0].tolist() == wanted

    boxes = shmem.full((n, SIZE), me, dtype="int32")
    arrived = shmem.zeros(n, dtype="uint64")
    around[1, SIZE](boxes, arrived)
    assert boxes.numpy()[:, 0].tolist() == wanted
    print(f"PE {me} has {wanted}, both times")
