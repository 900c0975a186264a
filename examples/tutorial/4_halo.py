"""Let heat spread along a rod that is cut among the PEs: the edges travel while the rest computes.

gpushmem run -n 4 examples/tutorial/4_halo.py
"""

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
            if me > 0:
                shmem.signal_wait_until(signal, shmem.CMP_EQ, step)
            new[1] = (old[0] + old[2]) / 2
        if i == 1:
            if me < n - 1:
                shmem.signal_wait_until(signal[1:], shmem.CMP_EQ, step)
            new[last] = (old[last - 1] + old[last + 1]) / 2
        cuda.syncthreads()


with shmem.session() as world:
    me, n = world.my_pe, world.n_pes
    rod = np.zeros(n * CELLS + 2)
    rod[0] = 100  # the left end is kept hot, the right end cold
    u = shmem.array(np.stack([rod[me * CELLS : (me + 1) * CELLS + 2]] * 2))
    arrived = shmem.zeros((2, 2), dtype="uint64")  # slot; from the left, from the right
    spread[1, 32](u, arrived, STEPS)
    for _ in range(STEPS):
        rod[1:-1] = (rod[:-2] + rod[2:]) / 2
    mine = u.numpy()[STEPS % 2, 1:-1]
    assert np.array_equal(mine, rod[me * CELLS + 1 : (me + 1) * CELLS + 1])
    print(f"PE {me}: {mine.mean():.3f} degrees on average, as NumPy says")
