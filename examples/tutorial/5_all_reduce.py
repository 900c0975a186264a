"""Sum an array over all PEs in three ways: by hand, by one operation, by a ready kernel.

gpushmem run -n 4 examples/tutorial/5_all_reduce.py
"""

import numpy as np
from gpushmem.kernels import AllReduce
from numba import cuda

import gpushmem as shmem

SIZE = 256


@shmem.jit
def by_hand(x, boxes, arrived):
    """`boxes` (n, SIZE) and `arrived` (n,): one of each for each PE that sends."""
    me, n = shmem.my_pe(), shmem.n_pes()
    for k in range(n):
        pe = (me + k) % n  # everybody begins with another PE
        shmem.put_signal_block(boxes[me], x, arrived[me:], 1, shmem.SIGNAL_SET, pe)
    if cuda.threadIdx.x == 0:
        for k in range(n):
            shmem.signal_wait_until(arrived[k:], shmem.CMP_EQ, 1)
    cuda.syncthreads()
    for i in range(cuda.threadIdx.x, x.size, cuda.blockDim.x):
        total = boxes[0, i]
        for k in range(1, n):  # in the same order on all PEs: the same bits
            total += boxes[k, i]
        x[i] = total


@shmem.jit
def by_operation(x):
    shmem.reduce_block(shmem.TEAM_WORLD, x, x, "sum")


with shmem.session() as world:
    me, n = world.my_pe, world.n_pes
    values = np.arange(SIZE, dtype="float32")
    wanted = n * values + n * (n - 1) // 2

    x = shmem.array(values + me)
    boxes = shmem.empty((n, SIZE), dtype="float32")
    arrived = shmem.zeros(n, dtype="uint64")
    by_hand[1, 128](x, boxes, arrived)
    assert np.array_equal(x.numpy(), wanted)

    x.copy_from(values + me)
    by_operation[1, 128](x)
    assert np.array_equal(x.numpy(), wanted)

    with AllReduce(size=SIZE, dtype="float32") as plan:
        for _ in range(3):
            x.copy_from(values + me)
            plan(x)
            assert np.array_equal(x.numpy(), wanted)
        if me == 0:
            print(f"{SIZE} numbers, {n} PEs, 3 ways: as NumPy says; the plan is {plan.algorithm}")
