"""Send different numbers of rows to each PE, which only their senders know; all-gather likewise.

    all-to-all    x of PE p: rows for PE 0, PE 1, ...     out: rows of PE 0, PE 1, ... for me
    all-gather    x of PE p: rows for all                 out: rows of PE 0, PE 1, ...

Nobody is told of sizes before: the signal of a box says how many rows there are. Each PE sends what
a box holds, one message for each other PE, and waits for those of all others; then it knows where
the rows of each begin in `out`, and copies them there: one round trip. What is more than a box
follows in further rounds:

    round   PE p, 5 rows for q, 1 from it      PE q, boxes of 2 rows
      0     rows 0 1, and "5"   ------------->
                                <-------------   row 0, and "1"
      1     rows 2 3            ------------->
                                <-------------   nothing: "go on"
      2     row 4               ------------->
                                <-------------   nothing

So the rule of `plan` holds for each pair of PEs by itself: a pair has epochs of its own, in each of
which both send and both receive, and as many in a call as the longer of its two ways needs, which
both know after round 0. A box is written in epoch e of its pair when its writer has heard, in epoch
e - 1, that its reader was done with e - 2. Whoever waits for a signal takes it, the number of rows
and a bit more, and sets it to 0 again before it sends in the next epoch of the pair; its writer
sets it again only after it has received that. Blocks have pairs, boxes and parts of their own.

No PE waits in a circle: a PE sends all of round r before it waits for any of it, and what it sends
in round r needs only what others have sent in rounds before.

What a PE sends, for n PEs, B blocks: its rows for others, once, in as many messages as there are
rounds, for each other PE and block: a round, and one for each further box that a pair fills in
either direction.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import product
from math import prod
from typing import Any

import numpy as np
from gpushmem.kernels.parts import ALIGN, member, part_of, send
from gpushmem.kernels.pieces import piece_size
from gpushmem.kernels.plan import SLOTS, Plan
from gpushmem.kernels.rows_put import ALL, lay_out_sent, put_rows
from gpushmem.kernels.two_level import levels_of
from gpushmem.kernels.two_level_rows import LevelsOfRows
from numba import cuda

import gpushmem as shmem

__all__ = ["AllGatherV", "AllToAllV", "reference"]

# A signal: something has come, the epoch of the pair (of 29 bits, for readers of traces), how many
# rows the pair has in this call.
HERE, EPOCH, COUNT = 1 << 62, (1 << 29) - 1, (1 << 32) - 1
ALGORITHMS = "direct", "put", "two_level"
PUT, INT64 = ALGORITHMS[1], np.dtype("int64")


@shmem.jit(device=True)
def pieces_of(count, blocks, b, piece):
    """How many pieces block `b` has of a pair's rows."""
    first, last = part_of(count, blocks, b)
    return (last - first + piece - 1) // piece


@shmem.jit(device=True)
def rounds_of(sent, come, piece):
    """How many rounds a pair has in this block, if so many rows go there, and come from there."""
    blocks, b = cuda.gridDim.x, cuda.blockIdx.x
    return max(1, pieces_of(sent, blocks, b, piece), pieces_of(come, blocks, b, piece))


@shmem.jit(device=True)
def rows_in(r, count, piece):
    """First and last (exclusive) of a pair's rows that this block sends in round `r`."""
    first, last = part_of(count, cuda.gridDim.x, cuda.blockIdx.x)
    first = min(first + r * piece, last)
    return first, min(first + piece, last)


@shmem.jit(device=True)
def head(epoch, count):
    """The signal of a box."""
    return HERE | (epoch & EPOCH) << 32 | count


@shmem.jit(device=True)
def lay_out_come(come, room, places):
    """Set `places` (n,) to where the rows of each PE begin in `out`; as `lay_out_sent`."""
    place = np.int64(0)
    for k in range(come.size):
        places[k] = place
        place += come[k]
    return max(place - room, 0)


@shmem.jit(device=True)
def send_round(r, x, width, piece, begins, sent, come, inbox, arrived, near, team, epochs):
    """Send round `r` to all that have it.

    What `send` has stored is visible to the whole block, so each thread's fence covers it.
    """
    b, me, n = cuda.blockIdx.x, shmem.team_my_pe(team), shmem.team_n_pes(team)
    for k in range(1, n):
        to = (me + k) % n
        if r == 0 or r < rounds_of(sent[to], come[to], piece):
            epoch, (first, last) = epochs[to] + r, rows_in(r, sent[to], piece)
            part = x[(begins[to] + first) * width : (begins[to] + last) * width]
            box, signal = inbox[epoch % SLOTS, b, me], arrived[epoch % SLOTS, b, me:]
            send(box, part, signal, head(epoch, sent[to]), member(team, to), near)
    if near:
        if cuda.threadIdx.x < n - 1:
            shmem.fence()
        for k in range(1 + cuda.threadIdx.x, n, cuda.blockDim.x):
            to = (me + k) % n
            if r == 0 or r < rounds_of(sent[to], come[to], piece):
                epoch = epochs[to] + r
                signal, value = arrived[epoch % SLOTS, b, me:], head(epoch, sent[to])
                shmem.signal_op(signal, value, shmem.SIGNAL_SET, member(team, to))


@shmem.jit(device=True)
def wait_for_round(r, piece, sent, come, arrived, team, epochs):
    """Wait for round `r` of all that have it, a thread for each; round 0 says how many `come`."""
    b, me, n = cuda.blockIdx.x, shmem.team_my_pe(team), shmem.team_n_pes(team)
    for k in range(1 + cuda.threadIdx.x, n, cuda.blockDim.x):
        source = (me + k) % n
        if r == 0 or r < rounds_of(sent[source], come[source], piece):
            signal = arrived[(epochs[source] + r) % SLOTS, b, source:]
            value = shmem.signal_wait_until(signal, shmem.CMP_NE, 0)
            signal[0] = 0
            if r == 0:
                come[source] = np.int64(value) & COUNT
    cuda.syncthreads()


@shmem.jit(device=True)
def take_round(r, out, width, piece, places, sent, come, inbox, team, epochs):
    """Copy what came in round `r` to its place in `out`, if there is room."""
    me, n, room = shmem.team_my_pe(team), shmem.team_n_pes(team), out.size // width
    for k in range(1, n):
        source = (me + n - k) % n
        if r < rounds_of(sent[source], come[source], piece):
            first, last = rows_in(r, come[source], piece)
            place, last = places[source], min(last, room - places[source])
            if first < last:
                box = inbox[(epochs[source] + r) % SLOTS, cuda.blockIdx.x, source]
                to = out[(place + first) * width : (place + last) * width]
                shmem.copy_block(to, box[: to.size])


@shmem.jit(device=True)
def take_mine(x, out, width, begin, count, place):
    """Copy this block's part of the rows that stay, if there is room."""
    first, last = part_of(count, cuda.gridDim.x, cuda.blockIdx.x)
    last = min(last, out.size // width - place)
    if first < last:
        part = x[(begin + first) * width : (begin + last) * width]
        shmem.copy_block(out[(place + first) * width : (place + last) * width], part)


@shmem.jit(collective=True)
def exchange_rows(
    x, counts, out, received, width, apart, piece, table, lost, inbox, arrived, near, team, epochs
):
    """`x`, `out` of rows of `width` elements; `counts` (n,), or (1,) if not `apart`: rows for all.

    `table` (blocks, 4, n), of the block alone: see `lay_out_sent` and `lay_out_come`. `epochs`
    (blocks, n): how many this block has gone through with each other PE.
    """
    me, n, b = shmem.team_my_pe(team), shmem.team_n_pes(team), cuda.blockIdx.x
    begins, sent, places, come = table[b, 0], table[b, 1], table[b, 2], table[b, 3]
    epochs = epochs[b]
    missing = np.int64(0)
    if cuda.threadIdx.x == 0:
        missing += lay_out_sent(counts, apart, x.size // width, begins, sent)
        come[me] = sent[me]
    cuda.syncthreads()
    r, rounds = 0, 1
    while r < rounds:
        send_round(r, x, width, piece, begins, sent, come, inbox, arrived, near, team, epochs)
        wait_for_round(r, piece, sent, come, arrived, team, epochs)
        if r == 0:
            if cuda.threadIdx.x == 0:
                missing += lay_out_come(come, out.size // width, places)
                if b == 0:
                    lost[0] = missing
            cuda.syncthreads()
            take_mine(x, out, width, begins[me], sent[me], places[me])
            for k in range(n):
                rounds = max(rounds, 1 if k == me else rounds_of(sent[k], come[k], piece))
        take_round(r, out, width, piece, places, sent, come, inbox, team, epochs)
        r += 1
    cuda.syncthreads()
    for k in range(cuda.threadIdx.x, n, cuda.blockDim.x):
        if k != me:
            epochs[k] += rounds_of(sent[k], come[k], piece)
        if b == 0:
            received[k] = come[k]


class Varying(Plan):
    """Exchanges of rows, of which about `rows` go to, or come from, a PE in a call."""

    moves = True
    algorithms: tuple[str, ...] = ALGORITHMS[:2]

    def __init__(
        self, *, rows: int, dtype: Any, row: tuple[int, ...] = (), team: Any = shmem.TEAM_WORLD,
        algorithm: str | None = None, blocks: int | None = None, threads: int | None = None,
    ) -> None:  # fmt: skip
        self.algorithm = self.algorithms[0] if algorithm is None else algorithm
        if self.algorithm not in self.algorithms:
            raise shmem.ArgumentError(
                f"{type(self).__name__}: there is no algorithm {algorithm!r}; there are "
                f"{', '.join(self.algorithms)}"
            )
        self.rows, self.row, self.width = rows, row, prod(row)
        self.dtype = np.dtype(dtype)
        parts = -(-rows * self.width * self.dtype.itemsize // shmem.tuning().block_bytes)
        super().__init__(team, blocks=blocks, threads=threads, parts=parts)
        if rows < 0 or self.width < 1:
            raise shmem.ArgumentError(
                f"{type(self).__name__}: rows is {rows}, and the shape of a row {row}; it must be "
                "0 or more, and a row have elements"
            )
        self.piece = max(1, piece_size(self, rows * self.width, dtype) // self.width)  # in rows
        self._lost = shmem.to_device(np.zeros(1, "int64"))
        self._workspace = self._make_workspace()

    def _make_workspace(self) -> tuple[Any, ...]:
        n, box = self.n_pes, -(-self.piece * self.width // ALIGN) * ALIGN
        table = shmem.device_array((self.blocks, 4, n), "int64")
        if self.algorithm == PUT:
            told = self.memory(self.blocks, n, n, dtype="int64")
            heard, done = (self.memory(self.blocks, n, dtype="uint64") for _ in range(2))
            return table, self._lost, told, heard, done, self.reachable
        return (
            table, self._lost, self.boxes(self.blocks, n, box, dtype=self.dtype),
            self.signals(self.blocks, n), self.reachable,
        )  # fmt: skip

    def epochs(self) -> Any:
        """Of each block, and where rows go by boxes of each of its pairs."""
        if self.algorithm == PUT:
            return super().epochs()
        return shmem.to_device(np.zeros((self.blocks, self.n_pes), "int64"))

    def _exchange(self, x: Any, counts: Any, out: Any, received: Any, apart: int, on: Any) -> None:
        self._expect(x, counts, out, received, apart)
        flat = self.flat(out)
        if self.algorithm == PUT and not isinstance(flat, shmem.SymmetricArray):
            raise shmem.SymmetryError(
                f"{type(self).__name__}: with the algorithm 'put' out must be a symmetric array, "
                "the same on all PEs: allocate it with gpushmem.empty, or take another algorithm"
            )
        kernel, *more = (put_rows,) if self.algorithm == PUT else (exchange_rows, self.piece)
        self.launch(
            kernel, on, self.flat(x), counts, flat, received, self.width, apart, *more,
            *self._workspace,
        )  # fmt: skip

    def _expect(self, x: Any, counts: Any, out: Any, received: Any, apart: int) -> None:
        for what, array in (("x", x), ("out", out)):
            rows = tuple(self.on_device(what, array).shape)[:1] or (0,)
            self.expect(what, array, (*rows, *self.row), self.dtype)
        self.expect("counts", counts, (self.n_pes if apart else 1,), INT64)
        self.expect("received", received, (self.n_pes,), INT64)

    def dropped(self) -> int:
        """How many rows the last call left out on this PE; waits for it.

        Those that `counts` has beyond the end of `x`, and those that came and `out` had no room
        for: the last ones in the order of their PEs. They were not written.
        """
        return int(self._lost.numpy()[0])

    def sends(self, counts: Sequence[int] = (), received: Sequence[int] = ()) -> tuple[int, int]:
        """Bytes and messages that a PE sends in a call of so many rows for each PE, and from each.

        Without these: of a call in which no PE has rows.
        """
        none = [0] * self.n_pes
        pairs = zip(counts or none, received or none, strict=True)
        others = [pair for pe, pair in enumerate(pairs) if pe != self.my_pe]
        nbytes = sum(to for to, _ in others) * self.width * self.dtype.itemsize
        if self.algorithm == PUT:
            messages = len(others) * self.blocks
            return nbytes + messages * self.n_pes * 8, 2 * messages
        rounds = (
            max(1, *(pieces_of(count, self.blocks, b, self.piece) for count in pair))
            for pair, b in product(others, range(self.blocks))
        )
        return nbytes, sum(rounds)


class AllToAllV(Varying):
    """Send rows to each PE, as many as each sender says: `plan(x, counts, out=out, received=c)`.

    `x` (any, *row) has the rows for PE 0 of the team, then those for PE 1, ...; `counts` (n,) of
    int64 says how many there are for each. `out` (any, *row) gets what comes, the rows of PE 0
    first, `received` (n,) of int64 how many came from each. `row` is the shape of a row, () for
    single elements. All are device arrays, apart from each other; their first axes may differ
    between PEs and calls. What has no room in `out` is not written, but counted in `received`; see
    `dropped`. The boxes are made for `rows` rows that a PE sends or receives in a call; more, or
    pieces beyond `tuning().piece_bytes`, take further rounds. MPI: MPI_Alltoallv.

    With `algorithm="put"` rows go straight to `out`, which must be a symmetric array, the same on
    all PEs: one copy less, and one way more. With "two_level", on nodes with as many PEs each, they
    go to the PE of the own node whose place on it is that of their goal, then to their goal:
    see `two_level_rows`.
    """

    algorithms = ALGORITHMS
    _levels: Any = None

    def _make_workspace(self) -> tuple[Any, ...]:
        if self.algorithm != "two_level":
            return super()._make_workspace()
        self._levels = levels_of(self, by_name=True, kind=LevelsOfRows)
        self.inboxes = self._levels.inboxes
        return ()

    def __call__(self, x: Any, counts: Any, *, out: Any, received: Any, stream: Any = 0) -> None:
        """Do it, asynchronously, in `stream`'s order; raises `ArgumentError` for other shapes."""
        if self._levels is None:
            self._exchange(x, counts, out, received, 1, stream)
        else:
            self._expect(x, counts, out, received, 1)
            self._levels(x, counts, out, received, stream)

    def dropped(self) -> int:
        """As any exchange's; in two levels that are two numbers."""
        return super().dropped() + (0 if self._levels is None else self._levels.dropped())

    def sends(self, counts: Sequence[int] = (), received: Sequence[int] = ()) -> tuple[int, int]:
        """As any exchange's; in two levels what all plans of them send, without the rows."""
        return self._levels.sends() if self._levels else super().sends(counts, received)

    def free(self) -> None:
        """As any plan's; then the teams of two levels."""
        super().free()
        if self._levels is not None:
            self._levels.free()


class AllGatherV(Varying):
    """Gather different numbers of rows from each PE on all: `plan(x, out=out, received=counts)`.

    As `AllToAllV`, with the same rows for all: those of `x`, or the first of them, as many as
    `count` (1,) of int64 on the device says, and with "direct" or "put" only. MPI: MPI_Allgatherv.
    """

    def __call__(
        self, x: Any, count: Any = None, *, out: Any, received: Any, stream: Any = 0
    ) -> None:
        """Do it, asynchronously, in `stream`'s order; raises `ArgumentError` for other shapes."""
        if count is None:
            count = self._all
        self._exchange(x, count, out, received, 0, stream)

    @cached_property
    def _all(self) -> Any:
        return shmem.to_device(np.full(1, ALL, "int64"))


def reference(
    arrays: list[np.ndarray[Any, Any]], counts: list[Sequence[int]], me: int
) -> np.ndarray[Any, Any]:
    """What PE `me` ends with, from all PEs' rows and their numbers for each PE."""
    starts = [np.cumsum([0, *each]) for each in counts]
    parts = zip(arrays, starts, strict=True)
    return np.concatenate([x[start[me] : start[me + 1]] for x, start in parts])
