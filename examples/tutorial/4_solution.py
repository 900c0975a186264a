"""Let heat spread along a closed ring that is cut among the PEs."""

import numpy as np
from numba import cuda

import gpushmem as shmem

CELLS, STEPS = 16, 500


@shmem.jit
def spread(u, arrived, steps):
    """`u` (2, CELLS + 2): the old and the new temperatures, each with a cell of both neighbours."""
    me, n, i = shmem.my_pe(), shmem.n_pes(), cuda.threadIdx.x
    left, right = (me - 1) % n, (me + 1) % n
    last = u.shape[1] - 2
    for step in range(1, steps + 1):
        slot = step % 2
        old, new, signal = u[1 - slot], u[slot], arrived[slot]
        if i == 0:
            shmem.put_signal(old[-1:], old[1:2], signal[1:], step, shmem.SIGNAL_SET, left)
        if i == 1:
            shmem.put_signal(old[:1], old[last:-1], signal, step, shmem.SIGNAL_SET, right)
        for k in range(2 + i, last, cuda.blockDim.x):  # what needs no neighbour
            new[k] = (old[k - 1] + old[k + 1]) / 2
        if i == 0:
            shmem.signal_wait_until(signal, shmem.CMP_EQ, step)
            new[1] = (old[0] + old[2]) / 2
        if i == 1:
            shmem.signal_wait_until(signal[1:], shmem.CMP_EQ, step)
            new[last] = (old[last - 1] + old[last + 1]) / 2
        cuda.syncthreads()


with shmem.session() as world:
    me, n = world.my_pe, world.n_pes
    ring = np.zeros(n * CELLS)
    ring[0] = 100  # it is hot here at the start
    mine = slice(me * CELLS, (me + 1) * CELLS)
    u = shmem.zeros((2, CELLS + 2), dtype="float64")
    u[0, 1:-1].copy_from(ring[mine])
    arrived = shmem.zeros((2, 2), dtype="uint64")
    spread[1, 32](u, arrived, STEPS)
    for _ in range(STEPS):
        ring = (np.roll(ring, 1) + np.roll(ring, -1)) / 2
    got = u.numpy()[STEPS % 2, 1:-1]
    assert np.array_equal(got, ring[mine])
    print(f"PE {me}: {got.mean():.3f} degrees on average, as NumPy says")
