"""Products by the vendor's library, and beside them, on a stream of the plan's, what is sent.

A kernel that multiplies is slower than the vendor's library, and one that sends takes its
multiprocessors. So for large products the caller's stream has the library's products, of whole
shards or chunks; the second stream has copies to other PEs, each with its signal. PE 0 of 3:

    all-gather      stream   A @ b         wait   B @ b         wait   C @ b
                    beside   A -> PE 2, PE 1
    reduce-scatter  stream   chunk 1 @ b          chunk 2 @ b          chunk 0 @ b    wait, sum
                    beside                        1 -> PE 1            2 -> PE 2

On GPUs products are cuBLASLt's, on CPUs those of BLAS (`gemm`), and all else is the same code.
Between GPUs that reach each other's memory what is on the second stream runs on no multiprocessor:
NVSHMEM has it done by copy engines, and by the stream (cudaMemcpyAsync and cuStreamWriteValue). A
kernel there could not begin while the library is on all of them.

What is queued is the same in every call, so that a graph can repeat it (`Plan.repeat`; on CPUs a
call takes the host 170 to 290 us, its graph 19 to 26): boxes are there once,
not twice as in `plan`, and a signal is 1 or 0, not an epoch. In this order:

    owner of a box      waits until it `arrived`, reads it, sets `arrived` to 0, adds 1 to `taken`
    who sends to boxes  waits until all of them are `taken`, sets `taken` to 0, fills them

A box is filled when all that this PE has filled before are taken: so `arrived` is 0 when it is set,
and nothing is added to `taken` between the wait and the 0. Each side completes its 0s before it
goes on, and what was read is read before it is said to be: kernels of a stream follow each other.

If a shard is too small to be multiplied on all multiprocessors, several are multiplied together: in
groups of one size, or of sizes that double, since ever more have come.

After Flux (see `gemm`) and the asynchronous tensor parallelism of PyTorch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gpushmem.kernels.collectives import exchange
from gpushmem.kernels.parts import complete, copy, member, part_of, wait_for_all
from gpushmem.kernels.pieces import cuts, piece_size
from numba import cuda

import gpushmem as shmem

__all__ = ["AllReduceBeside", "GatherBeside", "ScatterBeside", "shards_together"]

WARP, KEPT = 32, 16  # threads; arrays whose parts are known
# The library's tiles, one on a multiprocessor at a time; what a GPU computes while NVLink moves a
# byte: H100 794e12 / 375e9, B200 1745e12 / 750e9 (bench/gpu/machines.py).
TILE, PER_BYTE = (128, 256), 2200
LAUNCHES = (
    0.1  # of a product and of what waits before it, in times of a tile: some 7 of 20 to 90 us
)


@shmem.jit
def emptied(taken, team, epochs):
    """Wait until all boxes that this PE has filled can be filled again; one block."""
    if cuda.threadIdx.x == 0:
        shmem.signal_wait_until(taken, shmem.CMP_EQ, shmem.team_n_pes(team) - 1)
        shmem.signal_op(taken, 0, shmem.SIGNAL_SET, shmem.my_pe())
        shmem.quiet()


@shmem.jit
def came(arrived, team, epochs):
    """Wait for what some of the others send; one block, and it ends no epoch."""
    wait_for_all(arrived, 1)


@shmem.jit
def took(arrived, taken, team, epochs):
    """Tell the others that their boxes can be filled again; one block. `arrived` (n, each)."""
    me, n = shmem.team_my_pe(team), shmem.team_n_pes(team)
    for k in range(1 + cuda.threadIdx.x, n, cuda.blockDim.x):
        for i in range(arrived.shape[1]):
            shmem.signal_op(arrived[(me + k) % n, i:], 0, shmem.SIGNAL_SET, shmem.my_pe())
    complete()
    for k in range(1 + cuda.threadIdx.x, n, cuda.blockDim.x):
        shmem.signal_op(taken, 1, shmem.SIGNAL_ADD, member(team, (me + k) % n))


@shmem.jit
def copy_all(dst, src, team, epochs):
    """Set dst to src, both of one axis."""
    first, last = part_of(src.size, cuda.gridDim.x, cuda.blockIdx.x)
    shmem.copy_block(dst[first:last], src[first:last])


@shmem.jit
def copy_matrix(dst, src, team, epochs):
    """Set dst to src, both of two axes; a block has rows of its own."""
    for row in range(cuda.blockIdx.x, dst.shape[0], cuda.gridDim.x):
        copy(dst[row], src[row])


@shmem.jit
def sum_chunk(out, inbox, team, epochs):
    """`out` (mine,) gets the sum of the products in `inbox` (n, chunk), of which `mine` counts."""
    first, last = part_of(inbox.shape[1], cuda.gridDim.x, cuda.blockIdx.x)
    mine = out[first:last]
    shmem.reduce_rows_block(mine, inbox[:, first : first + mine.size], "sum")


def divided(n: int, g: int, doubling: bool) -> tuple[int, ...]:
    """Sizes of the groups that n shards are multiplied in: all g, or g, g, 2 g, 4 g, ..."""
    if not doubling:
        return (g,) * (n // g)
    return (g, *(g << k for k in range((n // g).bit_length() - 1)))


def shards_together(
    n: int, m: int, columns: int, itemsize: int, multiprocessors: int
) -> tuple[int, ...]:
    """Into which groups to divide n shards of m rows: what takes least, in times of a tile."""
    if not multiprocessors:
        return (1,) * n
    area = TILE[0] * TILE[1] * multiprocessors
    comes = m * itemsize * PER_BYTE / (2 * area)  # what a shard's way takes

    def takes(groups: tuple[int, ...]) -> float:
        now, come = 0.0, 0
        for size in groups:
            come += size
            tiles = -(-size * m // TILE[0]) * -(-columns // TILE[1])
            now = max(now, (come - 1) * comes) + LAUNCHES + -(-tiles // multiprocessors)
        return now

    every = [
        divided(n, g, doubling) for g in range(1, n + 1) if n % g == 0 for doubling in (False, True)
    ]
    return min((groups for groups in every if sum(groups) == n), key=takes)


class Beside:
    """A plan's second stream, boxes for one part of each PE, and their signals.

    A part comes with `each` messages, of which each has a signal.
    """

    def __init__(self, plan: Any, part: int, each: int = 1) -> None:
        self.plan, self.n, self.me = plan, plan.n_pes, plan.my_pe
        self._stream = shmem.stream(-1, nonblocking=True)
        self._inbox = plan.memory(self.n, part, dtype=plan.dtype)
        self._arrived = plan.memory(self.n, each, dtype="uint64")
        self._taken = plan.memory(1, dtype="uint64")
        self._mine, self._signal = self._inbox[self.me], self._arrived[self.me]
        self._signal.copy_from(1)  # and stays so, on this PE
        self._taken.copy_from(self.n - 1)
        self._every = plan.epochs()  # which kernels of a plan have, and none here counts
        self._parts: dict[int, tuple[Any, list[Any]]] = {}  # by id: an array, and parts of it

    @property
    def messages(self) -> int:
        """How many this PE sends in a call."""
        return (self.n - 1) * self._arrived.shape[1]

    @contextmanager
    def _both(self, stream: Any) -> Iterator[None]:
        """Queue a call on both streams; if the caller's is captured, so is the second one."""
        self.plan.on(stream)
        if self.n > 1:  # nothing is sent, otherwise
            self._step(stream, emptied, self._taken)
            shmem.wait_stream(self._stream, stream)
        yield
        if self.n > 1:
            self._step(stream, took, self._arrived, self._taken)
            shmem.wait_stream(stream, self._stream)

    def _send(self, box: Any, part: Any, to: int, which: int = 0) -> None:
        """Send a part to a box on a member, on the second stream; its signal is number `which`."""
        pe = self.plan.team.translate_pe(to, shmem.TEAM_WORLD)
        shmem.put_signal(
            box, part, self._signal[which:], 1, shmem.SIGNAL_SET, pe, stream=self._stream
        )  # fmt: skip

    def _grid(self, stream: Any, kernel: Any, *args: Any) -> None:
        """Launch a kernel of all blocks on the caller's stream."""
        shape = self.plan.blocks, self.plan.threads, stream
        self.plan.launch_as(shape, self._every, kernel, *args)

    def _step(self, stream: Any, kernel: Any, *args: Any) -> None:
        """Launch a kernel of one warp on the caller's stream."""
        shape = 1, min(WARP, self.plan.threads), stream
        self.plan.launch_as(shape, self._every, kernel, *args)

    def _in_parts(self, array: Any, places: list[tuple[int, int]]) -> list[Any]:
        """Rows of an array: from so many on, so many, as far as there are."""
        known = self._parts.get(id(array))
        if known is None or known[0] is not array:
            if len(self._parts) >= KEPT:
                self._parts.clear()
            parts = [array[first : first + size] for first, size in places]
            self._parts[id(array)] = known = array, parts
        return known[1]

    def _by_rows(self, array: Any, rows: int) -> list[Any]:
        """An array in parts of so many rows, one for each PE; the last ones may have fewer."""
        return self._in_parts(array, [(pe * rows, rows) for pe in range(self.n)])


class GatherBeside(Beside):
    """What `AllGatherGemm` does with the library: shards in `plan.groups`.

    The scales of rows, if there are, come in boxes of their own.
    """

    def __init__(self, plan: Any) -> None:
        super().__init__(plan, plan.m * plan.k, 1 + plan.row_scales)
        self._order = list(self._groups(1))
        shards = [self._inbox[first : first + size] for first, size in self._order]
        self._factors = [x.reshape(x.shape[0] * plan.m, plan.k) for x in shards]
        signals = [self._arrived[first : first + size] for first, size in self._order]
        self._signals = [x.reshape(-1) for x in signals]
        if plan.row_scales:
            self._scales = plan.memory(self.n, plan.m, dtype="float32")
            scales = [self._scales[first : first + size] for first, size in self._order]
            self._scales_of = [x.reshape(-1, 1) for x in scales]
        self._all = self._inbox.reshape(-1)

    def __call__(
        self, a: Any, b: Any, out: Any, gathered: Any, scale_a: Any, scale_b: Any, stream: Any
    ) -> None:
        """Queue the call; `gathered` is None if it is not wanted, the scales if there are none."""
        plan, alone = self.plan, self._order[0][1] == 1
        scales: tuple[Any, ...] = () if scale_a is None else (scale_a, scale_b)
        sent = [(self._mine, plan.flat(a))]
        if plan.row_scales:
            sent.append((self._scales[self.me], plan.flat(scales[0])))
        outs = self._in_parts(out, [(k * plan.m, size * plan.m) for k, size in self._order])
        with self._both(stream):
            for to in self.receivers():
                for which, (box, part) in enumerate(sent):
                    self._send(box, part, to, which)
            if not alone or gathered is not None:
                for box, part in sent:
                    self._grid(stream, copy_all, box, part)
            for k, (part, factor) in enumerate(zip(outs, self._factors, strict=True)):
                if k > 0 or not alone:
                    self._step(stream, came, self._signals[k])
                own = alone and k == 0
                self._multiply(part, a if own else factor, b, scales, k, own, stream)
            if gathered is not None:
                self._grid(stream, copy_all, plan.flat(gathered), self._all)

    def _multiply(
        self, out: Any, a: Any, b: Any, scales: tuple[Any, ...], k: int, own: bool, stream: Any
    ) -> None:
        """Multiply group k, or this PE's `own` shard."""
        if not scales:
            shmem.gemm(out, a, b, False, stream=stream)
            return
        of_a = scales[0] if own or not self.plan.row_scales else self._scales_of[k]
        shmem.gemm_scaled(out, a, b, of_a, scales[1], False, stream=stream)

    def _groups(self, step: int) -> Iterator[tuple[int, int]]:
        """First shard and size of each group, in the order in which this PE multiplies them.

        And with step -1, of the PEs that need this one's shard, in the order in which they do: if
        groups double, those are the same.
        """
        sizes = self.plan.groups
        mine = self.me // sizes[0]
        for k, size in enumerate(sizes):
            if sizes[-1] > sizes[0]:
                yield (self.me // size ^ (k > 0)) * size, size
            else:
                yield (mine + step * k) % len(sizes) * size, size

    def receivers(self) -> Iterator[int]:
        """The others, in the order in which they need my shard; no two PEs send to one at once."""
        for first, size in self._groups(-1):
            for k in range(size):
                to = first + (self.me - k) % size
                if to != self.me:
                    yield to


class ScatterBeside(Beside):
    """What `GemmReduceScatter` does with the library."""

    def __init__(self, plan: Any) -> None:
        share, n = plan.share, plan.n
        super().__init__(plan, share * n)
        self._all_arrived = self._arrived.reshape(-1)
        heights = [max(0, min(share, plan.rows - pe * share)) for pe in range(self.n)]
        self._size = share * n
        products = plan.sendable(shmem.device_array((self.n, self._size), plan.dtype))
        # Where this PE's products go: those for others to be sent, its own to where theirs come.
        sent = [products[pe][: heights[pe] * n] for pe in range(self.n)]
        boxes = [self._mine[: heights[pe] * n] for pe in range(self.n)]
        self._parcels = list(zip(boxes, sent, strict=True))
        places = [boxes[pe] if pe == self.me else sent[pe] for pe in range(self.n)]
        chunks = zip(places, heights, strict=True)
        self._chunks = [place.reshape(height, n) for place, height in chunks]
        self._spare = sent[self.me]
        self._dense: Any = None

    def __call__(self, a: Any, b: Any, out: Any, stream: Any) -> None:
        """Queue the call."""
        plan = self.plan
        size, dense = out.dtype.itemsize, out
        if out.strides != (out.shape[1] * size, size) and out.size:
            if self._dense is None:
                self._dense = shmem.device_array(out.shape, plan.dtype)
            dense = self._dense
        if self.n == 1:
            plan.on(stream)
            shmem.gemm(out, a, b, False, stream=stream)
            return
        self._sum(a, b, dense, stream)
        if dense is not out:
            self._grid(stream, copy_matrix, out, dense)

    def _sum(self, a: Any, b: Any, out: Any, stream: Any) -> None:
        self._scatter(a, b, self.plan.flat(out), stream)

    def _scatter(self, a: Any, b: Any, mine: Any, stream: Any) -> None:
        rows = self._by_rows(a, self.plan.share)
        with self._both(stream):
            for k in range(1, self.n + 1):
                owner = (self.me + k) % self.n
                shmem.gemm(self._chunks[owner], rows[owner], b, False, stream=stream)
                if k < self.n:
                    shmem.wait_stream(self._stream, stream)
                    box, part = self._parcels[owner]
                    self._send(box, part, owner)
            self._step(stream, came, self._all_arrived)
            self._grid(stream, sum_chunk, mine, self._inbox)


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
