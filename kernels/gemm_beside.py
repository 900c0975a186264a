"""Products by the vendor's library, and beside them, on a stream of the plan's, what moves data.

A kernel that multiplies is slower than the vendor's library, and one that waits for data holds
multiprocessors. So for large products the caller's stream has the library's products, of whole
shards or chunks, and between them kernels of one warp that tell and wait; a kernel of few blocks
runs beside them and sends. PE 0 of 3:

    all-gather      stream   A @ b         wait   B @ b         wait   C @ b
                    beside   A -> PE 2, PE 1
    reduce-scatter  stream   chunk 1 @ b          chunk 2 @ b          chunk 0 @ b    sum
                    beside                        1 -> PE 1            2 -> PE 2

On GPUs products are cuBLASLt's, on CPUs those of BLAS (`gemm`), and all else is the same code.

The library is called with addresses, which must not change from call to call if a CUDA graph is to
repeat them. So boxes are there once, not twice as in `plan`, and instead a PE says that it has
*taken* what is in a box: the sender of epoch e waits for the signal e - 1. It has it long since,
unless a PE is a whole call behind. Streams of one PE are ordered by signals to itself, too: `ready`
for what the stream has made, `sent` for what the kernel beside has done with.

After Flux (see `gemm`) and the asynchronous tensor parallelism of PyTorch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gpushmem.kernels.collectives import exchange
from gpushmem.kernels.parts import (
    begin,
    complete,
    copy,
    end,
    member,
    part_of,
    tell,
    tell_others,
    wait_for,
    wait_for_all,
    wait_for_others,
)
from gpushmem.kernels.pieces import cuts, piece_size
from numba import cuda

import gpushmem as shmem

__all__ = ["AllReduceBeside", "GatherBeside", "ScatterBeside"]

WARP, KEPT = 32, 16  # threads; arrays whose parts are known


@shmem.jit
def made(k, ready, team, epochs):
    """Tell the kernel beside that chunk `k` can be sent. One block, and it ends no epoch."""
    tell(ready[k:], begin(epochs), shmem.my_pe())


# --- all-gather + gemm


@shmem.jit
def send_shard(a, inbox, arrived, taken, ready, sent, team, epochs):
    """Send `a` (m k,) to all; a block sends its part of it, to the one before me first.

    `inbox` (n, m k), `arrived` (n, blocks), `taken` (n,), `ready` (1,), `sent` (blocks,).
    """
    me, n, epoch = shmem.team_my_pe(team), shmem.team_n_pes(team), begin(epochs)
    b = cuda.blockIdx.x
    first, last = part_of(a.size, cuda.gridDim.x, b)
    wait_for(ready, epoch)
    for k in range(1, n):
        to = (me + n - k) % n
        wait_for(taken[to:], epoch - 1)
        shmem.put_signal_block(
            inbox[me][first:last], a[first:last], arrived[me, b:], epoch, shmem.SIGNAL_SET,
            member(team, to),
        )  # fmt: skip
    complete()
    tell(sent[b:], epoch, shmem.my_pe())
    end(epochs)


@shmem.jit
def next_shard(k, arrived, taken, sent, team, epochs):
    """Between two products: shard k - 1 has been taken, shard k is waited for. One block.

    k is 1 to n; shard 0 is this PE's own, and instead of shard n the end of the call comes.
    """
    me, n, epoch = shmem.team_my_pe(team), shmem.team_n_pes(team), begin(epochs)
    if k > 1:
        tell(taken[me:], epoch, member(team, (me + k - 1) % n))
    if k < n:
        wait_for_all(arrived[(me + k) % n], epoch)
    else:
        wait_for_all(sent, epoch)
        end(epochs)


@shmem.jit
def copy_shard(k, a, whole, inbox, team, epochs):
    """`whole` (n m k,) gets shard k: this PE's own from `a`, others as they have come."""
    source = (shmem.team_my_pe(team) + k) % shmem.team_n_pes(team)
    first, last = part_of(a.size, cuda.gridDim.x, cuda.blockIdx.x)
    shard = inbox[source] if k > 0 else a
    shmem.copy_block(whole[source * a.size + first : source * a.size + last], shard[first:last])


# --- gemm + reduce-scatter


@shmem.jit
def send_chunks(products, total, inbox, arrived, taken, ready, sent, team, epochs):
    """Send chunk after chunk to who sums it; a block sends its part of each.

    `products`, `inbox` (n, chunk), of which the last may be shorter: `total` elements are theirs;
    `arrived`, `taken` (blocks, n), `ready` (n,), `sent` (blocks,).
    """
    me, n, epoch = shmem.team_my_pe(team), shmem.team_n_pes(team), begin(epochs)
    b, chunk = cuda.blockIdx.x, products.shape[1]
    first, last = part_of(chunk, cuda.gridDim.x, b)
    for k in range(1, n):
        owner = (me + k) % n
        product = products[owner][: max(0, min(chunk, total - owner * chunk))][first:last]
        wait_for(ready[k:], epoch)
        wait_for(taken[b, owner:], epoch - 1)
        shmem.put_signal_block(
            inbox[me][first:last], product, arrived[b, me:], epoch, shmem.SIGNAL_SET,
            member(team, owner),
        )  # fmt: skip
    complete()
    tell(sent[b:], epoch, shmem.my_pe())
    end(epochs)


@shmem.jit
def sum_chunk(out, inbox, arrived, taken, sent, team, epochs):
    """`out` (mine,) gets the sum of what all have sent, and of this PE's own product in `inbox`."""
    me, b, epoch = shmem.team_my_pe(team), cuda.blockIdx.x, begin(epochs)
    first, last = part_of(inbox.shape[1], cuda.gridDim.x, b)
    mine = out[first:last]
    wait_for_others(arrived[b], epoch, team)
    shmem.reduce_rows_block(mine, inbox[:, first : first + mine.size], "sum")
    tell_others(taken[b, me:], epoch, team, True)
    wait_for(sent[b:], epoch)
    end(epochs)


@shmem.jit
def copy_matrix(dst, src, team, epochs):
    """Set dst to src, both of two axes; a block has rows of its own."""
    for row in range(cuda.blockIdx.x, dst.shape[0], cuda.gridDim.x):
        copy(dst[row], src[row])


# --- what plans have for it


class Beside:
    """A plan's second stream, with epochs of its own, and what orders it with the first."""

    def __init__(self, plan: Any) -> None:
        self.plan, self.n, self.me = plan, plan.n_pes, plan.my_pe
        self._stream, self._epochs = shmem.stream(-1, nonblocking=True), plan.epochs()
        self._every = plan.epochs()  # of the caller's stream
        self._ready = plan.memory(plan.n_pes, dtype="uint64")
        self._sent = plan.memory(plan.blocks, dtype="uint64")
        self._parts: dict[int, tuple[Any, list[Any]]] = {}  # by id: an array, and parts of it

    @property
    def messages(self) -> int:
        """How many this PE sends in a call."""
        return (self.n - 1) * int(self.plan.blocks)

    @contextmanager
    def _after(self, stream: Any) -> Iterator[None]:
        """Queue a call; if the caller's stream is captured, so is the second one."""
        self.plan.on(stream)
        captured = shmem.is_capturing(stream)
        if captured:
            shmem.wait_stream(self._stream, stream)
        yield
        if captured:
            shmem.wait_stream(stream, self._stream)

    def _beside(self, kernel: Any, *args: Any) -> None:
        """Launch a kernel on the second stream."""
        shape = self.plan.blocks, self.plan.threads, self._stream
        self.plan.launch_as(shape, self._epochs, kernel, *args)

    def _grid(self, stream: Any, kernel: Any, *args: Any) -> None:
        """Launch a kernel of all blocks on the caller's stream."""
        shape = self.plan.blocks, self.plan.threads, stream
        self.plan.launch_as(shape, self._every, kernel, *args)

    def _step(self, stream: Any, kernel: Any, *args: Any) -> None:
        """Launch a kernel of one warp on the caller's stream."""
        shape = 1, min(WARP, self.plan.threads), stream
        self.plan.launch_as(shape, self._every, kernel, *args)

    def _by_rows(self, array: Any, rows: int) -> list[Any]:
        """An array in parts of so many rows, the last ones may have fewer; one for each PE."""
        known = self._parts.get(id(array))
        if known is None or known[0] is not array:
            parts = [array[pe * rows : (pe + 1) * rows] for pe in range(self.n)]
            if len(self._parts) >= KEPT:
                self._parts.clear()
            self._parts[id(array)] = known = array, parts
        return known[1]


class GatherBeside(Beside):
    """What `AllGatherGemm` does with the library."""

    def __init__(self, plan: Any) -> None:
        super().__init__(plan)
        self._inbox = plan.memory(self.n, plan.m * plan.k, dtype=plan.dtype)
        self._shards = list(self._inbox.reshape(self.n, plan.m, plan.k))
        self._arrived = plan.memory(self.n, plan.blocks, dtype="uint64")
        self._taken = plan.memory(self.n, dtype="uint64")

    def __call__(self, a: Any, b: Any, out: Any, gathered: Any, stream: Any) -> None:
        """Queue the call; `gathered` is None if it is not wanted."""
        plan, inbox = self.plan, self._inbox
        a, b, out = map(plan.on_device, ("a", "b", "out"), (a, b, out))
        outs = self._by_rows(out, plan.m)
        signals = self._arrived, self._taken
        flat = plan.flat(a)
        whole = None if gathered is None else plan.flat(gathered)
        with self._after(stream):
            self._step(stream, made, 0, self._ready)
            self._beside(send_shard, flat, inbox, *signals, self._ready, self._sent)
            for k in range(self.n):
                source = (self.me + k) % self.n
                if k > 0:
                    self._step(stream, next_shard, k, *signals, self._sent)
                shmem.gemm(outs[source], self._shards[source] if k else a, b, False, stream=stream)
                if whole is not None:
                    self._grid(stream, copy_shard, k, flat, whole, inbox)
            self._step(stream, next_shard, self.n, *signals, self._sent)


class ScatterBeside(Beside):
    """What `GemmReduceScatter` does with the library."""

    def __init__(self, plan: Any) -> None:
        super().__init__(plan)
        share, n = plan.share, plan.n
        heights = [max(0, min(share, plan.rows - pe * share)) for pe in range(self.n)]
        self._size, self._total = share * n, plan.rows * n
        self._products = plan.sendable(shmem.device_array((self.n, self._size), plan.dtype))
        self._inbox = plan.memory(self.n, self._size, dtype=plan.dtype)
        # Where this PE's products go: those for others to be sent, its own to where theirs come.
        places = [self._inbox[pe] if pe == self.me else self._products[pe] for pe in range(self.n)]
        chunks = zip(places, heights, strict=True)
        self._chunks = [place.reshape(share, n)[:height] for place, height in chunks]
        self._spare = self._products[self.me][: heights[self.me] * n]
        self._arrived, self._taken = (
            plan.memory(plan.blocks, self.n, dtype="uint64") for _ in range(2)
        )
        self._multiplied: set[Any] = set()  # strides of a, b that the library has code for
        self._dense: Any = None

    def __call__(self, a: Any, b: Any, out: Any, stream: Any) -> None:
        """Queue the call."""
        plan = self.plan
        a, b, out = map(plan.on_device, ("a", "b", "out"), (a, b, out))
        size, dense = out.dtype.itemsize, out
        if out.strides != (out.shape[1] * size, size) and out.size:
            if self._dense is None:
                self._dense = shmem.device_array(out.shape, plan.dtype)
            dense = self._dense
        with self._after(stream):
            if self.n == 1:  # nothing is sent, and nothing would hold the second stream up
                shmem.gemm(out, a, b, False, stream=stream)
                return
            self._sum(a, b, dense, stream)
            if dense is not out:
                self._grid(stream, copy_matrix, out, dense)

    def _sum(self, a: Any, b: Any, out: Any, stream: Any) -> None:
        self._scatter(a, b, self.plan.flat(out), stream)

    def _scatter(self, a: Any, b: Any, mine: Any, stream: Any) -> None:
        rows, signals = self._by_rows(a, self.plan.share), (self._arrived, self._taken)
        send = self._products, self._total, self._inbox, *signals, self._ready, self._sent
        # Code is loaded when no kernel runs; so none may wait for what the library has yet to load.
        early = (a.strides, b.strides) in self._multiplied
        if early:
            self._beside(send_chunks, *send)
        for k in range(1, self.n + 1):
            owner = (self.me + k) % self.n
            shmem.gemm(self._chunks[owner], rows[owner], b, False, stream=stream)
            if k < self.n:
                self._step(stream, made, k, self._ready)
        if not early:
            self._beside(send_chunks, *send)
            self._multiplied.add((a.strides, b.strides))
        self._grid(stream, sum_chunk, mine, self._inbox, *signals, self._sent)


class AllReduceBeside(ScatterBeside):
    """What `GemmAllReduce` does with the library: then the sums go to all."""

    def __init__(self, plan: Any) -> None:
        super().__init__(plan)
        self._piece = piece_size(plan, self._size, plan.dtype)
        self._boxes = plan.boxes(plan.blocks, self.n, self._piece, dtype=plan.dtype)
        self._signals = plan.signals(plan.blocks, self.n)
        self._pieces = plan.epochs()

    @property
    def messages(self) -> int:
        """How many this PE sends in a call."""
        pieces = len(list(cuts(self._size, self.plan.blocks, self._piece)))
        return super().messages + (self.n - 1) * pieces

    def _sum(self, a: Any, b: Any, out: Any, stream: Any) -> None:
        plan, whole = self.plan, self.plan.flat(out)
        # What is sent over a network is the plan's own memory.
        mine = self._by_rows(whole, self._size)[self.me] if plan.reachable else self._spare
        self._scatter(a, b, mine, stream)
        given = mine, whole, self._size, 0, self._piece, self._boxes, self._signals, plan.reachable
        plan.launch_as((plan.blocks, plan.threads, stream), self._pieces, exchange, *given)
