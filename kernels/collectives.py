"""Collectives as plans: all-gather, all-to-all, reduce-scatter, exclusive scan, broadcast.

Each PE sends its part to a box of its own on every other PE, tells all of them at once, and takes
what has come, piece by piece, each an epoch of its own (see `plan`), as an all-reduce in one shot:

                     part for PE q     what is done with the part of PE p
    all-gather       all of x          out[p] = part
    all-to-all       x[q]              out[p] = part
    reduce-scatter   x[q]              out = the sum of all parts, by the numbers of the PEs
    exclusive scan   all of x, if p < q    out = the sum of all parts that came, of PEs before
    broadcast        all of the root's x

What a PE sends, for n PEs, parts of S bytes in P pieces: (n - 1) S bytes in (n - 1) P messages; of
a scan to those behind it, and signals to those before; of a broadcast the root does, and the others
send it P signals each.
"""

from __future__ import annotations

from typing import Any

from gpushmem.kernels.parts import (
    begin,
    end_at,
    member,
    part_of,
    send,
    sum_in_order,
    tell,
    tell_others,
    wait_for,
    wait_for_others,
)
from gpushmem.kernels.pieces import InPieces
from gpushmem.kernels.plan import SLOTS
from numba import cuda

import gpushmem as shmem

__all__ = ["AllGather", "AllToAll", "Broadcast", "ExclusiveScan", "ReduceScatter"]


@shmem.jit(device=True)
def send_to_others(x, apart, first, last, box, signals, near, team, epoch):
    """Send elements `first` to `last` of the others' parts of `x`, which are so far `apart`.

    `box` is this PE's on the others.
    """
    me, n = shmem.team_my_pe(team), shmem.team_n_pes(team)
    for k in range(1, n):
        to = (me + k) % n
        part = x[to * apart + first : to * apart + last]
        send(box[: part.size], part, signals[me:], epoch, member(team, to), near)
    tell_others(signals[me:], epoch, team, near)


@shmem.jit(collective=True)
def exchange(x, out, size, apart, piece, inbox, arrived, near, team, epochs):
    """`out` (n * size,) gets the parts that all have sent; `apart` is 0 if they are all of `x`.

    Then `x` and `out` may be shorter: what they lack of the last parts is not sent.
    """
    epoch, b = begin(epochs), cuda.blockIdx.x
    me, n = shmem.team_my_pe(team), shmem.team_n_pes(team)
    lower, upper = part_of(size, cuda.gridDim.x, b)
    for first in range(lower, upper, piece):
        last, s = min(first + piece, upper), epoch % SLOTS
        boxes, signals = inbox[s, b], arrived[s, b]
        send_to_others(x, apart, first, last, boxes[me], signals, near, team, epoch)
        mine = x[me * apart + first : me * apart + last]
        shmem.copy_block(out[me * size + first : me * size + last], mine)
        for k in range(1, n):
            source = (me + n - k) % n
            wait_for(signals[source:], epoch)
            place = out[source * size + first : source * size + last]
            shmem.copy_block(place, boxes[source][: place.size])
        epoch += 1
    end_at(epochs, epoch - 1)


@shmem.jit(collective=True)
def reduce_scatter(x, out, size, piece, inbox, arrived, near, team, epochs):
    """`out` (size,) gets the sum of the parts that all have sent."""
    epoch, b = begin(epochs), cuda.blockIdx.x
    me, n = shmem.team_my_pe(team), shmem.team_n_pes(team)
    lower, upper = part_of(size, cuda.gridDim.x, b)
    for first in range(lower, upper, piece):
        last, s = min(first + piece, upper), epoch % SLOTS
        boxes, signals = inbox[s, b], arrived[s, b]
        send_to_others(x, size, first, last, boxes[me], signals, near, team, epoch)
        shmem.copy_block(out[first:last], x[me * size + first : me * size + last])
        wait_for_others(signals, epoch, team)
        sum_in_order(out[first:last], boxes, me, n)
        epoch += 1
    end_at(epochs, epoch - 1)


@shmem.jit(collective=True)
def exclusive_scan(x, out, piece, inbox, arrived, near, team, epochs):
    """`out` gets the sum of the x of those before; these are told that this PE has begun.

    The first PE has a box that nobody writes to, its own: zeros.
    """
    epoch, b = begin(epochs), cuda.blockIdx.x
    me, n = shmem.team_my_pe(team), shmem.team_n_pes(team)
    lower, upper = part_of(x.size, cuda.gridDim.x, b)
    for first in range(lower, upper, piece):
        last, s = min(first + piece, upper), epoch % SLOTS
        boxes, signals, mine = inbox[s, b], arrived[s, b], x[first : min(first + piece, upper)]
        for k in range(1, n):
            to = (me + k) % n
            part = mine[: mine.size if to > me else 0]
            send(boxes[me][: part.size], part, signals[me:], epoch, member(team, to), near)
        tell_others(signals[me:], epoch, team, near)
        wait_for_others(signals, epoch, team)
        shmem.reduce_rows_block(out[first:last], boxes[: max(me, 1), : mine.size], "sum")
        epoch += 1
    end_at(epochs, epoch - 1)


@shmem.jit(collective=True)
def broadcast(x, root, piece, inbox, arrived, near, team, epochs):
    """`x` of the root to all; the others tell it that they have begun: its next box is free.

    A PE has one box, since only the root sends.
    """
    epoch, b = begin(epochs), cuda.blockIdx.x
    me = shmem.team_my_pe(team)
    lower, upper = part_of(x.size, cuda.gridDim.x, b)
    for first in range(lower, upper, piece):
        last, s = min(first + piece, upper), epoch % SLOTS
        boxes, signals = inbox[s, b], arrived[s, b]
        if me == root:
            send_to_others(x, 0, first, last, boxes[0], signals, near, team, epoch)
            wait_for_others(signals, epoch, team)
        else:
            tell(signals[me:], epoch, member(team, root))
            wait_for(signals[root:], epoch)
            shmem.copy_block(x[first:last], boxes[0][: last - first])
        epoch += 1
    end_at(epochs, epoch - 1)


class Collective(InPieces):
    """A collective whose parts have `size` elements of `dtype`."""

    by_all = True  # whether each PE has a box for each

    def __init__(
        self, *, size: int, dtype: Any, team: Any = shmem.TEAM_WORLD, blocks: int | None = None,
        threads: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(size, dtype, team, blocks, threads)
        self._workspace = (
            self.boxes(self.blocks, self.n_pes if self.by_all else 1, self.piece, dtype=dtype),
            self.signals(self.blocks, self.n_pes), self.reachable,
        )  # fmt: skip

    def flats(self, x: Any, parts_of_x: int, out: Any, parts_of_out: int) -> tuple[Any, Any]:
        """The two arrays as arrays of one axis; raises `ArgumentError` if they are not right."""
        found = []
        for what, array, parts in (("x", x, parts_of_x), ("out", out, parts_of_out)):
            found.append(self.flat(array))
            self.expect(what, found[-1], (parts * self.size,), self.dtype)
        return found[0], found[1]

    def sends(self) -> tuple[int, int]:
        """Bytes and messages that a PE, of a broadcast the root, sends in a call."""
        others = self.n_pes - 1
        return others * self.size * self.dtype.itemsize, others * self.pieces


class AllGather(Collective):
    """Gather `size` elements of `dtype` from each PE of a team on all: `plan(x, out=out)`.

    `x` has `size` elements, `out` n times as many: those of each PE, in the order of the team. They
    are device arrays of any shape, apart from each other, or `x` is this PE's part of `out`.
    """

    def __call__(self, x: Any, *, out: Any, stream: Any = 0) -> None:
        """Do it, asynchronously, in `stream`'s order; raises `ArgumentError` for other sizes."""
        x, out = self.flats(x, 1, out, self.n_pes)
        self.launch(exchange, stream, x, out, self.size, 0, self.piece, *self._workspace)


class AllToAll(Collective):
    """Send `size` elements of `dtype` from each PE of a team to each: `plan(x, out=out)`.

    `x` and `out` have n times `size` elements: part q of `x` becomes part p of `out` on PE q, where
    p is the sender. They are device arrays of any shape, apart from each other.
    """

    def __call__(self, x: Any, *, out: Any, stream: Any = 0) -> None:
        """Do it, asynchronously, in `stream`'s order; raises `ArgumentError` for other sizes."""
        x, out = self.flats(x, self.n_pes, out, self.n_pes)
        self.launch(exchange, stream, x, out, self.size, self.size, self.piece, *self._workspace)


class ReduceScatter(Collective):
    """Sum arrays over a team, each PE keeping a part of `size` elements: `plan(x, out=out)`.

    `x` has n times `size` elements of `dtype`, `out` `size`: the sum of part p of all PEs' `x`, on
    PE p. They are device arrays of any shape, apart from each other. Parts are added in the order
    of the team, float16 and bfloat16 as float32, and rounded once.
    """

    def __call__(self, x: Any, *, out: Any, stream: Any = 0) -> None:
        """Do it, asynchronously, in `stream`'s order; raises `ArgumentError` for other sizes."""
        x, out = self.flats(x, self.n_pes, out, 1)
        self.launch(reduce_scatter, stream, x, out, self.size, self.piece, *self._workspace)


class ExclusiveScan(Collective):
    """Sum arrays of `size` elements of `dtype` over the PEs before this one: `plan(x, out=out)`.

    `out` is zeros on the first PE of the team. `x` and `out` are device arrays of any shape, apart
    from each other, or the same. Sums are as in `ReduceScatter`. MPI: MPI_Exscan.
    """

    def __call__(self, x: Any, *, out: Any, stream: Any = 0) -> None:
        """Do it, asynchronously, in `stream`'s order; raises `ArgumentError` for other sizes."""
        x, out = self.flats(x, 1, out, 1)
        self.launch(exclusive_scan, stream, x, out, self.piece, *self._workspace)

    def sends(self) -> tuple[int, int]:
        """Bytes and messages that this PE sends in a call."""
        behind = self.n_pes - 1 - self.my_pe
        return behind * self.size * self.dtype.itemsize, super().sends()[1]


class Broadcast(Collective):
    """Send `size` elements of `dtype` from PE `root` of a team to all others: `plan(x)`."""

    by_all = False

    def __init__(
        self, *, size: int, dtype: Any, root: int = 0, team: Any = shmem.TEAM_WORLD,
        blocks: int | None = None, threads: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(size=size, dtype=dtype, team=team, blocks=blocks, threads=threads)
        if not 0 <= root < self.n_pes:
            raise shmem.ArgumentError(
                f"{type(self).__name__}: root is {root}; the team has {self.n_pes} PEs"
            )
        self.root = root  # always the same: who has been told that a PE has begun may send to it

    def __call__(self, x: Any, *, stream: Any = 0) -> None:
        """Replace `x`, a device array of any shape, by the root's; asynchronous.

        In `stream`'s order. Raises `ArgumentError` for other sizes.
        """
        flat = self.flat(x)
        self.expect("x", flat, (self.size,), self.dtype)
        self.launch(broadcast, stream, flat, self.root, self.piece, *self._workspace)
