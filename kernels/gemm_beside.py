"""Products by the vendor's library, and beside them, on a stream of the plan's, what is sent.

A kernel that multiplies is slower than the vendor's library, and one that sends takes its
multiprocessors. So for large products the caller's stream has the library's products, of whole
shards or chunks; the second stream has copies to other PEs, each with its signal. PE 0 of 3:

    all-gather      stream   A @ b         wait   B @ b         wait   C @ b
                    beside   A -> PE 2, PE 1
    reduce-scatter  stream   chunk 1 @ b          chunk 2 @ b          chunk 0 @ b    wait, sum
                    beside                        1 -> PE 1            2 -> PE 2

An all-reduce does that in parts of rows, and sends the sums of one beside the product of the next:

    all-reduce      stream   X @ b                 Y @ b                 sum X             sum Y
                    beside                         of X -> PE 1, PE 2    of Y -> 1, 2      sums

On GPUs products are cuBLASLt's, on CPUs those of BLAS (`gemm`), and all else is the same code.
Between GPUs that reach each other's memory what is on the second stream runs on no multiprocessor:
NVSHMEM has it done by copy engines, and by the stream (cudaMemcpyAsync and cuStreamWriteValue). A
kernel there could not begin while the library is on all of them.

What is queued is the same in every call, so that a graph can repeat it (`Plan.repeat`; on CPUs a
call takes the host 190 to 260 us, its graph 25 to 70): boxes are there once,
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

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from gpushmem.kernels.parts import complete, copy, member, part_of, wait_for_all
from numba import cuda

import gpushmem as shmem

__all__ = [
    "AllReduceBeside", "GatherBeside", "ScatterBeside", "divided", "parts_to_sum",
    "shards_together", "summed_in_parts",
]  # fmt: skip

WARP, KEPT = 32, 32  # threads; arrays whose parts are known
# The library's tiles, one on a multiprocessor at a time; what a GPU computes while NVLink moves a
# byte: H100 794e12 / 375e9, B200 1745e12 / 750e9 (bench/gpu/machines.py); and HBM: 794 / 3, ...
TILE, PER_BYTE, OF_HBM = (128, 256), 2200, 260
OF_LAUNCHES = 6e7  # what a multiprocessor computes in 7 us: H100 794e12 / 132, B200 1745e12 / 148
LEAST = 1 << 20  # bytes, of a copy that is worth its launch
ON_CPUS = 1  # parts of an all-reduce: each costs launches
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
def came_from_all(arrived, which, team, epochs):
    """Wait for the message `which` of all others; one block. `arrived` (n, each)."""
    for pe in range(cuda.threadIdx.x, arrived.shape[0], cuda.blockDim.x):
        shmem.signal_wait_until(arrived[pe, which:], shmem.CMP_EQ, 1)


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


@shmem.jit
def sum_part(mine, inbox, at, team, epochs):
    """Add what is in the boxes `inbox` (n, size), from element `at` on, to `mine`."""
    first, last = part_of(mine.size, cuda.gridDim.x, cuda.blockIdx.x)
    part, own = mine[first:last], inbox[shmem.team_my_pe(team)]
    shmem.copy_block(own[at + first : at + last], part)
    shmem.reduce_rows_block(part, inbox[:, at + first : at + last], "sum")


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


def summed_in_parts(
    parts: int, multiplied: float, summed: float, taken: float, way: float, signal: float = 0.0,
    now: float = 0.0,
) -> float:  # fmt: skip
    """When all is there, in `AllReduceBeside`: what each step of a part takes, and its two ways."""
    link = came = now
    for k in range(parts + 1):
        now += multiplied if k < parts else max(parts - 2, 0) * taken
        before = came
        if k < parts:
            link = came = max(link, now) + way
        if k:
            now = max(now, before + signal) + summed
            link = max(link, now) + way
    return max(now, link + signal) + min(parts, 2) * taken


def parts_to_sum(
    n: int, m: int, columns: int, inner: int, itemsize: int, multiprocessors: int
) -> int:
    """Into how many parts to divide the rows of a product that n PEs sum up: what takes least."""
    if not multiprocessors:
        return ON_CPUS
    area = TILE[0] * TILE[1] * multiprocessors
    nbytes, of_byte = m * columns * itemsize, 2 * area * max(inner, 1)  # ..., in times of a tile
    sent = nbytes * (n - 1) / n  # by a PE, and once more when it is summed up
    launches = OF_LAUNCHES / (of_byte / multiprocessors)

    def takes(parts: int) -> float:
        way, moved = sent * PER_BYTE / of_byte / parts, nbytes * OF_HBM / of_byte / parts
        tiles = -(-m // (parts * TILE[0])) * -(-columns // TILE[1])
        multiplied = launches - (-tiles // multiprocessors)
        summed, taken = launches + moved * (n + 3) / n, launches + 2 * moved
        return summed_in_parts(parts, multiplied, summed, taken, way)

    some = 1, *(parts for parts in (2, 4, 8, 16) if parts * LEAST <= sent / max(n - 1, 1))
    return min(some, key=takes)


class Beside:
    """A plan's second stream, boxes for one part of each PE, and their signals.

    A part, of so many elements, comes with `each` messages, of which each has a signal.
    """

    def __init__(self, plan: Any, part: int, each: int = 1) -> None:
        self.plan, self.n, self.me = plan, plan.n_pes, plan.my_pe
        self._stream = shmem.stream(-1, nonblocking=True)
        self.part = part
        self._inbox = plan.memory(self.n, part, dtype=plan.dtype)
        self._arrived = plan.memory(self.n, each, dtype="uint64")
        self._taken = plan.memory(1, dtype="uint64")
        self._mine, self._signal = self._inbox[self.me], self._arrived[self.me]
        self._signal.copy_from(1)  # and stays so, on this PE
        self._taken.copy_from(self.n - 1)
        self._every = plan.epochs()  # which kernels of a plan have, and none here counts
        self._made: dict[Any, tuple[Any, list[Any]]] = {}  # of arrays, by what made it and id
        self._places: list[tuple[int, int]] = []  # first row of each part, and how many

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

    def _kept(self, make: Callable[[Any], list[Any]], array: Any) -> list[Any]:
        """What `make` makes of an array: the same objects in each call."""
        known = self._made.get((make, id(array)))
        if known is None or known[0] is not array:
            if len(self._made) >= KEPT:
                self._made.clear()
            self._made[make, id(array)] = known = array, make(array)
        return known[1]

    def _in_parts(self, array: Any) -> list[Any]:
        """The rows at `_places`: from so many on, so many, as far as there are."""
        return [array[first : first + rows] for first, rows in self._places]


class GatherBeside(Beside):
    """What `AllGatherGemm` does with the library: shards in `plan.groups`.

    The scales of rows, if there are, come in boxes of their own.
    """

    def __init__(self, plan: Any) -> None:
        super().__init__(plan, plan.m * plan.k, 1 + plan.row_scales)
        self._order = list(self._groups(1))
        self._places = [(k * plan.m, size * plan.m) for k, size in self._order]
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
        outs = self._kept(self._in_parts, out)
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
        share, n = plan.m, plan.n
        super().__init__(plan, share * n)
        self._all_arrived = self._arrived.reshape(-1)
        self._places = [(pe * share, share) for pe in range(self.n)]
        # Where this PE's products go: those for others to be sent, its own to where theirs come.
        products = plan.sendable(shmem.device_array((self.n, share * n), plan.dtype))
        self._parcels = [products[pe] for pe in range(self.n)]
        places = [self._mine if pe == self.me else self._parcels[pe] for pe in range(self.n)]
        self._chunks = [place.reshape(share, n) for place in places]
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
        self._scatter(self._kept(self._in_parts, a), b, plan.flat(dense), stream)
        if dense is not out:
            self._grid(stream, copy_matrix, out, dense)

    def _scatter(self, rows: list[Any], b: Any, mine: Any, stream: Any) -> None:
        with self._both(stream):
            for k in range(1, self.n + 1):
                owner = (self.me + k) % self.n
                shmem.gemm(self._chunks[owner], rows[owner], b, False, stream=stream)
                if k < self.n:
                    shmem.wait_stream(self._stream, stream)
                    self._send(self._mine, self._parcels[owner], owner)
            self._step(stream, came, self._all_arrived)
            self._grid(stream, sum_chunk, mine, self._inbox)


class Part(NamedTuple):
    """Rows of a product that all PEs have, and all sum up a share of."""

    flat: Any  # of one axis
    rows: Any  # of two
    mine: Any  # what this PE sums up
    sent: list[tuple[int, Any, Any]]  # to whom, to which box, what


class AllReduceBeside(Beside):
    """What `GemmAllReduce` does with the library, in parts of `plan.rows_together` rows.

    A part's product is made where others can write: in `out`, if the plan is `in_place`. The PEs
    get their rows of it, sum them up, and send the sums to where each has its product of these
    rows: that has been sent by then, to the PE whose sum comes. The part before is summed up when a
    product has been made, so that what it waits for has come meanwhile; parts are copied out while
    the last one is under way.
    """

    def __init__(self, plan: Any) -> None:
        rows = plan.rows_together
        places = [(first, rows) for first in range(0, max(plan.rows, 1), rows)]
        self._share = -(-rows // plan.n_pes) * plan.n  # elements of a PE's rows of a part
        super().__init__(plan, len(places) * self._share, 2 * len(places))
        self._places = places
        self._whole: Any = None
        if not plan.in_place:
            self._whole = plan.memory(plan.rows, plan.n, dtype=plan.dtype)

    def __call__(self, a: Any, b: Any, out: Any, stream: Any) -> None:
        """Queue the call."""
        if self.n == 1:
            self.plan.on(stream)
            shmem.gemm(out, a, b, False, stream=stream)
            return
        parts = self._kept(self._parts_of, out if self._whole is None else self._whole)
        last, outs = len(parts) - 1, self._kept(self._in_parts, out)
        with self._both(stream):
            for k, factor in enumerate(self._kept(self._in_parts, a)):
                shmem.gemm(parts[k].rows, factor, b, False, stream=stream)
                self._share_out(k, parts[k], stream)
                if k:
                    self._sum(k - 1, parts[k - 1], stream)
            for k, part in enumerate(parts):
                if k == max(last - 1, 0):
                    self._sum(last, parts[last], stream)
                self._take(k, part, outs[k], stream)

    def _parts_of(self, whole: Any) -> list[Part]:
        """The parts of what products are made in."""
        return [self._part(*each) for each in enumerate(self._in_parts(whole))]

    def _part(self, k: int, rows: Any) -> Part:
        flat, share, sent = rows.reshape(-1), self._share, []
        for step in range(1, self.n):
            to = (self.me + step) % self.n
            theirs = flat[to * share :][:share]
            sent.append((to, self._mine[k * share :][: theirs.size], theirs))
        return Part(flat, rows, flat[self.me * share :][:share], sent)

    def _share_out(self, k: int, part: Part, stream: Any) -> None:
        """Send the others their rows of the product."""
        shmem.wait_stream(self._stream, stream)
        for to, box, theirs in part.sent:
            self._send(box, theirs, to, k)

    def _sum(self, k: int, part: Part, stream: Any) -> None:
        """Sum up this PE's rows, and send them to all."""
        self._step(stream, came_from_all, self._arrived, k)
        self._grid(stream, sum_part, part.mine, self._inbox, k * self._share)
        shmem.wait_stream(self._stream, stream)
        for to, *_ in part.sent:
            self._send(part.mine, part.mine, to, len(self._places) + k)

    def _take(self, k: int, part: Part, out: Any, stream: Any) -> None:
        """Wait for what all have summed up, and copy it to `out`, if that is elsewhere."""
        self._step(stream, came_from_all, self._arrived, len(self._places) + k)
        if self._whole is None:
            return
        if out.strides == part.rows.strides:
            self._grid(stream, copy_all, self.plan.flat(out), part.flat)
        else:
            self._grid(stream, copy_matrix, out, part.rows)
