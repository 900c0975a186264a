"""Send arrays around a ring, call after call: a signal's value is the number of the call."""

from numba import cuda

import gpushmem as shmem

SIZE, CALLS = 64, 3


@shmem.jit
def around(boxes, arrived, call):
    n, i = shmem.n_pes(), cuda.threadIdx.x
    right = (shmem.my_pe() + 1) % n
    for k in range(1, n):
        shmem.put_signal_block(boxes[k], boxes[k - 1], arrived[k:], call, shmem.SIGNAL_SET, right)
        if i == 0:
            shmem.signal_wait_until(arrived[k:], shmem.CMP_EQ, call)
        cuda.syncthreads()


with shmem.session() as world:
    me, n = world.my_pe, world.n_pes
    boxes = shmem.zeros((n, SIZE), dtype="int32")
    arrived = shmem.zeros(n, dtype="uint64")
    for call in range(1, CALLS + 1):
        boxes[0].copy_from(shmem.full(SIZE, 100 * call + me, dtype="int32").numpy())
        around[1, SIZE](boxes, arrived, call)
        assert boxes.numpy()[:, 0].tolist() == [100 * call + (me - k) % n for k in range(n)]
        shmem.barrier_all()  # all have read their boxes
    print(f"PE {me}: {CALLS} calls, the last one brought {boxes.numpy()[1:, 0].tolist()}")
