"""Sum an array over all PEs of a team: four algorithms, one plan.

    one shot     each PE sends all of its array to every other, and adds up what it has
    two shot     each PE adds up one part for all: parts go there, sums come back
    ring         parts travel round a ring, and are added to at each stop; then once more, as sums
    multicast    as two shot, but a sum is sent once: the switch, or the backend, copies it

    two shot, 3 PEs, arrays of parts a b c:

          PE 0  a0 b0 c0          b0 -> PE 1   c0 -> PE 2          a -> PE 1, PE 2
          PE 1  a1 b1 c1    1.    a1 -> PE 0   c1 -> PE 2    2.    b -> PE 0, PE 2
          PE 2  a2 b2 c2          a2 -> PE 0   b2 -> PE 1          c -> PE 0, PE 1

    ring, 3 PEs, arrays of chunks 0 1 2:

          step 0    PE 0 --0--> PE 1 --1--> PE 2 --2--> PE 0     add
          step 1    PE 0 --2--> PE 1 --0--> PE 2 --1--> PE 0     add
          step 2    PE 0 --1--> PE 1 --2--> PE 2 --0--> PE 0     keep
          step 3    PE 0 --0--> PE 1 --1--> PE 2 --2--> PE 0     keep

What a PE sends, for n PEs and arrays of S bytes, each block of the kernel with messages of its own:

                  bytes              messages per block
    one shot      (n - 1) S          n - 1
    two shot      2 (n - 1) S / n    2 (n - 1)
    ring          2 (n - 1) S / n    2 (n - 1), one after the other
    multicast     S                  n - 1, and S / itemsize stores

In each, all PEs add up the addends of an element in the same order, so all end with the same bits.
One shot and two shot are those of TensorRT-LLM and vLLM for NVLink, the multicast is NVLink
SHARP's; the ring is that of Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for
clusters of workstations", J. Parallel Distrib. Comput. 69, 2009.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gpushmem.kernels.parts import (
    accumulate,
    begin,
    copy,
    end,
    member,
    part_of,
    sum_in_order,
    tell,
    wait_for,
)
from gpushmem.kernels.plan import SLOTS, Plan
from numba import cuda

import gpushmem as shmem

__all__ = ["AllReduce", "reference"]


@shmem.jit(collective=True, cache=True)
def one_shot(x, inbox, arrived, team, epochs):
    """`inbox` (SLOTS, n, size), `arrived` (SLOTS, blocks, n); a block sums its own part of `x`."""
    me, n, epoch = shmem.team_my_pe(team), shmem.team_n_pes(team), begin(epochs)
    slot, b = epoch % SLOTS, cuda.blockIdx.x
    first, last = part_of(x.size, cuda.gridDim.x, b)
    mine = x[first:last]
    for k in range(1, n):
        pe = member(team, (me + k) % n)
        box, signal = inbox[slot, me][first:last], arrived[slot, b, me:]
        shmem.put_signal_block(box, mine, signal, epoch, shmem.SIGNAL_SET, pe)
    for k in range(1, n):
        wait_for(arrived[slot, b, (me + k) % n :], epoch)
    sum_in_order(mine, inbox[slot], first, me, n)
    end(epochs)


@shmem.jit(device=True)
def sum_my_part(x, inbox, arrived, team, epoch):
    """The first half of two shot: send parts to who sums them, sum mine; a block's share of it.

    Returns first and last of what has been summed in `x`, for all threads of the block.
    """
    me, n = shmem.team_my_pe(team), shmem.team_n_pes(team)
    slot, b, blocks = epoch % SLOTS, cuda.blockIdx.x, cuda.gridDim.x
    for k in range(1, n):
        to = (me + k) % n
        lower, upper = part_of(x.size, n, to)
        first, last = part_of(upper - lower, blocks, b)
        box, signal = inbox[slot, me][first:last], arrived[slot, b, me:]
        outgoing = x[lower + first : lower + last]
        shmem.put_signal_block(box, outgoing, signal, epoch, shmem.SIGNAL_SET, member(team, to))
    lower, upper = part_of(x.size, n, me)
    first, last = part_of(upper - lower, blocks, b)
    for k in range(1, n):
        wait_for(arrived[slot, b, (me + k) % n :], epoch)
    sum_in_order(x[lower + first : lower + last], inbox[slot], first, me, n)
    cuda.syncthreads()
    return lower + first, lower + last


@shmem.jit(device=True)
def take_sums(x, sums, summed, team, epoch):
    """The end of two shot: copy what the others have summed to `x`; a block's share of it."""
    me, n = shmem.team_my_pe(team), shmem.team_n_pes(team)
    slot, b, blocks = epoch % SLOTS, cuda.blockIdx.x, cuda.gridDim.x
    for k in range(1, n):
        other = (me + k) % n
        lower, upper = part_of(x.size, n, other)
        first, last = part_of(upper - lower, blocks, b)
        wait_for(summed[slot, b, other:], epoch)
        copy(x[lower + first : lower + last], sums[slot][lower + first :])


@shmem.jit(collective=True, cache=True)
def two_shot(x, inbox, arrived, sums, summed, team, epochs):
    """`inbox` (SLOTS, n, part), `sums` (SLOTS, size), the signals (SLOTS, blocks, n)."""
    me, n, epoch = shmem.team_my_pe(team), shmem.team_n_pes(team), begin(epochs)
    first, last = sum_my_part(x, inbox, arrived, team, epoch)
    box, signal = sums[epoch % SLOTS][first:last], summed[epoch % SLOTS, cuda.blockIdx.x, me:]
    for k in range(1, n):
        pe = member(team, (me + k) % n)
        shmem.put_signal_block(box, x[first:last], signal, epoch, shmem.SIGNAL_SET, pe)
    take_sums(x, sums, summed, team, epoch)
    end(epochs)


@shmem.jit(collective=True, cache=True)
def multicast(x, inbox, arrived, sums, summed, team, epochs):
    """As `two_shot`."""
    me, n, epoch = shmem.team_my_pe(team), shmem.team_n_pes(team), begin(epochs)
    first, last = sum_my_part(x, inbox, arrived, team, epoch)
    everywhere = shmem.multicast_array(sums[epoch % SLOTS], team)
    for i in range(first + cuda.threadIdx.x, last, cuda.blockDim.x):
        everywhere[i] = x[i]
    for k in range(1, n):
        tell(summed[epoch % SLOTS, cuda.blockIdx.x, me:], epoch, member(team, (me + k) % n))
    take_sums(x, sums, summed, team, epoch)
    end(epochs)


@shmem.jit(collective=True, cache=True)
def ring(x, inbox, arrived, team, epochs):
    """`inbox` (SLOTS, blocks, steps, chunk), `arrived` (SLOTS, blocks, steps).

    A block sums its own part of `x`, in a ring of its own.
    """
    me, n, epoch = shmem.team_my_pe(team), shmem.team_n_pes(team), begin(epochs)
    slot, b = epoch % SLOTS, cuda.blockIdx.x
    right = member(team, (me + 1) % n)
    first, last = part_of(x.size, cuda.gridDim.x, b)
    mine = x[first:last]
    for step in range(2 * (n - 1)):
        # The chunk to pass on is the one that came in the step before.
        start, stop = part_of(mine.size, n, (me - step) % n)
        box, signal = inbox[slot, b, step], arrived[slot, b, step:]
        shmem.put_signal_block(box, mine[start:stop], signal, epoch, shmem.SIGNAL_SET, right)
        wait_for(signal, epoch)
        start, stop = part_of(mine.size, n, (me - step - 1) % n)
        if step < n - 1:
            accumulate(mine[start:stop], box)
        else:
            copy(mine[start:stop], box)
        cuda.syncthreads()  # before it is passed on
    end(epochs)


ALGORITHMS = {"one_shot": one_shot, "two_shot": two_shot, "ring": ring, "multicast": multicast}


def part_size(size: int, parts: int) -> int:
    """How many elements the largest part has; see `part_of`."""
    return part_of(size, parts, 0)[1]


class AllReduce(Plan):
    """Sum arrays of `size` elements of `dtype` over a team, in place: `plan(x)`.

    `x` is any device array of that size; every PE ends with the same bits. `algorithm` is
    "one_shot", "two_shot", "ring" or "multicast" (see the module); by default what the size
    suggests. The workspace is 2 n arrays for one shot, 4 for the others. Numbers are added in
    their own dtype.
    """

    def __init__(
        self, size: int, dtype: Any, team: Any = shmem.TEAM_WORLD, *,
        algorithm: str | None = None, blocks: int | None = None, threads: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(team, blocks=blocks, threads=threads)
        self.size, self.dtype = size, np.dtype(dtype)
        self.algorithm = algorithm or suggested(size * self.dtype.itemsize, self.n_pes)
        if self.algorithm not in ALGORITHMS:
            raise shmem.ArgumentError(
                f"AllReduce: there is no algorithm {algorithm!r}; there is {', '.join(ALGORITHMS)}"
            )
        n, steps = self.n_pes, max(1, 2 * (self.n_pes - 1))
        if self.algorithm == "ring":
            chunk = part_size(part_size(size, self.blocks), n)
            self._workspace = (
                self.boxes(self.blocks, steps, chunk, dtype=dtype),
                self.signals(self.blocks, steps),
            )
        elif self.algorithm == "one_shot":
            self._workspace = self.boxes(n, size, dtype=dtype), self.signals(self.blocks, n)
        else:
            self._workspace = (
                self.boxes(n, part_size(size, n), dtype=dtype), self.signals(self.blocks, n),
                self.boxes(size, dtype=dtype), self.signals(self.blocks, n),
            )  # fmt: skip

    def __call__(self, x: Any, stream: Any = 0) -> None:
        """Replace `x` by its sum over the team; asynchronous, in `stream`'s order.

        Raises `ArgumentError` if its size or dtype are not the plan's.
        """
        flat = self.flat(x)
        self.expect("x", flat, (self.size,), self.dtype)
        self.launch(ALGORITHMS[self.algorithm], stream, flat, *self._workspace)

    def sends(self) -> tuple[int, int]:
        """Bytes and messages that a PE sends in a call, at most: the last parts may be smaller."""
        n, nbytes = self.n_pes, self.size * self.dtype.itemsize
        if self.algorithm == "one_shot":
            return (n - 1) * nbytes, (n - 1) * self.blocks
        return 2 * (n - 1) * -(-nbytes // n), 2 * (n - 1) * self.blocks


def suggested(nbytes: int, n_pes: int) -> str:
    """The algorithm for arrays of so many bytes."""
    return "one_shot" if n_pes <= 2 or nbytes <= SMALL else "two_shot"


SMALL = 32 << 10


def reference(arrays: list[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    """What every PE ends with, from all PEs' arrays."""
    return np.sum(np.stack(arrays), axis=0, dtype=arrays[0].dtype)
