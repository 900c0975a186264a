"""A mistake: PE 0 waits for a neighbour that it does not have."""

import numpy as np
from numba import cuda

import gpushmem as shmem

CELLS, STEPS = 16, 500


@shmem.jit
def spread(u, arrived, steps):
    """`u` (2, CELLS + 2): the old and the new temperatures, each with a cell of both neighbours."""
    me, n, i = shmem.my_pe(), shmem.n_pes(), cuda.threadIdx.x
    last = u.shape[1] - 2
    for step in range(1, steps + 1):
        slot = step % 2
        old, new, signal = u[1 - slot], u[slot], arrived[slot]
        if i == 0 and me > 0:
            shmem.put_signal(old[-1:], old[1:2], signal[1:], step, shmem.SIGNAL_SET, me - 1)
        if i == 1 and me < n - 1:
            shmem.put_signal(old[:1], old[last:-1], signal, step, shmem.SIGNAL_SET, me + 1)
        for k in range(2 + i, last, cuda.blockDim.x):  # what needs no neighbour
            new[k] = (old[k - 1] + old[k + 1]) / 2
        if i == 0:
            shmem.signal_wait_until(signal, shmem.CMP_EQ, step)  # was: if me > 0
            new[1] = (old[0] + old[2]) / 2
        if i == 1:
            if me < n - 1:
                shmem.signal_wait_until(signal[1:], shmem.CMP_EQ, step)
            new[last] = (old[last - 1] + old[last + 1]) / 2
        cuda.syncthreads()


with shmem.session() as world:
    u = shmem.array(np.zeros((2, CELLS + 2)))
    arrived = shmem.zeros((2, 2), dtype="uint64")
    spread[1, 32](u, arrived, STEPS)
