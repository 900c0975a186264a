"""Sum an array over all PEs, inside one kernel: the ring algorithm.

Each PE cuts its array into one chunk per PE. In n - 1 steps every chunk travels round the ring and
is added to at each stop, which leaves PE p with the whole sum of chunk p + 1; in another n - 1
steps the finished chunks travel round once more:

    step 0          PE 0 --chunk 0--> PE 1 --chunk 1--> PE 2 --chunk 2--> PE 0     add
    step 1          PE 0 --chunk 2--> PE 1 --chunk 0--> PE 2 --chunk 1--> PE 0     add
    step 2          PE 0 --chunk 1--> PE 1 --chunk 2--> PE 2 --chunk 0--> PE 0     keep
    step 3          PE 0 --chunk 0--> PE 1 --chunk 1--> PE 2 --chunk 2--> PE 0     keep

Each PE sends 2 (n - 1) / n times its array, in 2 (n - 1) messages a block: the least possible for
long arrays (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
workstations", J. Parallel Distrib. Comput. 69, 2009). Every PE adds a chunk's parts in the same
order, at the same places, so all PEs end with the same bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda

import gpushmem as shmem

__all__ = ["RingAllReduce"]

THREADS = 128


@shmem.jit
def ring_all_reduce(data, inbox, arrived, call):
    """Sum `data` in place; block b works on its own part of it, with its own ring.

    `inbox` (blocks, steps, chunk) and `arrived` (blocks, steps) are symmetric; `call` counts the
    calls from 1. Each step has a place of its own, and no barrier is needed before the next call
    writes it again. Who has sent a step has used all steps before it, so: my left neighbour has
    finished a call only when I have sent step n - 1 of it, round the whole ring, and so have used
    the places up to n - 2; and it sends step s >= n - 1 of the next call only when I have sent
    step s - n + 1 of that call, and so have finished this one.
    """
    me, n = shmem.my_pe(), shmem.n_pes()
    right = (me + 1) % n
    blocks, b = cuda.gridDim.x, cuda.blockIdx.x
    t, threads = cuda.threadIdx.x, cuda.blockDim.x

    share = (data.size + blocks - 1) // blocks
    first = min(b * share, data.size)
    mine = data[first : min(first + share, data.size)]
    chunk = (share + n - 1) // n

    for step in range(2 * (n - 1)):
        # The chunk to pass on is the one that came in the step before.
        start = min((me - step) % n * chunk, mine.size)
        outgoing = mine[start : min(start + chunk, mine.size)]
        box, signal = inbox[b, step], arrived[b, step:]
        cuda.syncthreads()  # what the threads wrote in the step before is in `outgoing`
        shmem.put_signal_block(box, outgoing, signal, call, shmem.SIGNAL_SET, right)
        if t == 0:
            shmem.signal_wait_until(signal, shmem.CMP_EQ, call)
        cuda.syncthreads()

        start = min((me - step - 1) % n * chunk, mine.size)
        incoming = mine[start : min(start + chunk, mine.size)]
        if step < n - 1:
            for i in range(t, incoming.size, threads):
                incoming[i] += box[i]
        else:
            for i in range(t, incoming.size, threads):
                incoming[i] = box[i]


class RingAllReduce:
    """A plan for summing arrays of one size over all PEs, in place.

    `size` elements of `dtype`; `blocks` blocks work on a part each. Making a plan and `free` are
    collective. Calls need no barrier between them, but every PE must make the same ones, in the
    same order and on one stream. The array may be any device array: it is not written remotely.
    """

    def __init__(self, size: int, dtype: Any, *, blocks: int = 1) -> None:
        n = shmem.n_pes()
        steps = max(1, 2 * (n - 1))
        self.size, self.dtype, self.blocks = size, np.dtype(dtype), blocks
        share = -(-size // blocks)
        chunk = -(-share // n)
        self._inbox = shmem.empty((blocks, steps, chunk), dtype)
        self._arrived = shmem.zeros((blocks, steps), "uint64")
        self._calls = 0

    def __call__(self, array: Any, stream: Any = 0) -> None:
        """Replace `array` by its sum over all PEs; asynchronous, in `stream`'s order.

        Raises `ArgumentError` if its size or dtype are not the plan's.
        """
        if array.size != self.size or array.dtype != self.dtype:
            raise shmem.ArgumentError(
                f"RingAllReduce: the array has {array.size} elements of {array.dtype}, "
                f"the plan is for {self.size} of {self.dtype}"
            )
        self._calls += 1
        flat = array.reshape(self.size)
        ring_all_reduce[self.blocks, THREADS, stream](flat, self._inbox, self._arrived, self._calls)

    def free(self) -> None:
        """Give the workspace back; collective."""
        shmem.free(self._arrived)
        shmem.free(self._inbox)
