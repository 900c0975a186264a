"""Write a plan: average with the neighbours on a ring, again and again without a barrier.

gpushmem run -n 4 examples/own_plan.py
"""

import numpy as np
from gpushmem.kernels import SLOTS, Plan, begin, end, member, part_of, wait_for
from numba import cuda

import gpushmem as shmem


@shmem.jit(collective=True)
def smooth(x, inbox, arrived, team, epochs):
    """`inbox` (SLOTS, blocks, 2, part) and `arrived` (SLOTS, blocks, 2): from the left, the right.

    A block has a part of `x`, and exchanges it with the same block of the neighbours.
    """
    me, n, epoch = shmem.team_my_pe(team), shmem.team_n_pes(team), begin(epochs)
    b, slot = cuda.blockIdx.x, epoch % SLOTS
    first, last = part_of(x.size, cuda.gridDim.x, b)
    mine, boxes, signals = x[first:last], inbox[slot, b], arrived[slot, b]
    for side in range(2):  # to the one on my right I am the left
        pe = member(team, (me + 1 - 2 * side) % n)
        shmem.put_signal_block(boxes[side], mine, signals[side:], epoch, shmem.SIGNAL_SET, pe)
    for side in range(2):
        wait_for(signals[side:], epoch)
    for i in range(cuda.threadIdx.x, mine.size, cuda.blockDim.x):
        mine[i] = (boxes[0, i] + mine[i] + boxes[1, i]) / 3
    end(epochs)


class Smooth(Plan):
    """Replace arrays of `size` elements by the mean of the left one, one's own and the right one.

    `plan(x)`, asynchronously, in `stream`'s order; the PEs of `team` form the ring.
    """

    def __init__(
        self, *, size: int, dtype, team=shmem.TEAM_WORLD, blocks: int | None = None,
        threads: int | None = None,
    ):  # fmt: skip
        super().__init__(team, blocks=blocks, threads=threads)
        self.size, self.dtype = size, dtype
        part = part_of(size, self.blocks, 0)[1]  # the first is the largest
        self.inbox = self.boxes(self.blocks, 2, part, dtype=dtype)
        self.arrived = self.signals(self.blocks, 2)

    def __call__(self, x, *, stream=0):
        flat = self.flat(x)
        self.expect("x", flat, (self.size,), self.dtype)
        self.launch(smooth, stream, flat, self.inbox, self.arrived)


SIZE, CALLS = 10_001, 50

shmem.init()
me, n = shmem.my_pe(), shmem.n_pes()
values = 1000 * np.arange(n)[:, None] + np.arange(SIZE) % 100.0  # of all PEs
x = shmem.array(values[me])  # symmetric: it is sent from, perhaps to other machines
with Smooth(size=SIZE, dtype="float64") as plan:
    for _ in range(CALLS):
        plan(x)
        values = (np.roll(values, 1, axis=0) + values + np.roll(values, -1, axis=0)) / 3
    assert np.allclose(x.numpy(), values[me])
if me == 0:
    print(f"{CALLS} averages of {SIZE} numbers over {n} PEs: as NumPy says")
shmem.finalize()
