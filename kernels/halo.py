"""Exchange halos of an array that is cut along one axis: each PE gets its neighbours' edges.

The PEs of a team have parts of an array, one behind the other in their order. An operation that
looks `width` rows around each row, such as a convolution or a stencil, needs those of the
neighbours, too:

    PE 0  a b c d          0 0 | a b c d | e f         width 2; zeros at the ends of the whole,
    PE 1  e f g h    ->    c d | e f g h | i j         or, if it is periodic, what is at the other
    PE 2  i j k l          g h | i j k l | 0 0         end
                           below           above

`accumulate` is its transpose, which brings back what was added to copies, as gradients are:

    PE 0  0 0 | A B C D | E F          A     B     C+c   D+d
    PE 1  c d | E F G H | I J    ->    E+E'  F+F'  G+g   H+h     (E' of PE 0, g of PE 2, ...)
    PE 2  g h | I J K L | 0 0          I+I'  J+J'  K     L

A PE packs its two edges, puts each in the neighbour's box, with a signal, and copies its own rows
while they fly. Parts may differ in length along the axis, as long as each has `width` rows: what
travels does not depend on it. What a PE sends, with two neighbours, for B blocks of the kernel and
edges of S bytes: 2 S bytes in 2 B messages. Each block has parts of the edges of its own.

**Two slots suffice**, as in `plan`: a PE writes to its neighbours alone, and in every call it hears
from each of them, since whoever is my neighbour below has me above. That is true of a ring of two,
whose members have two boxes for each other, and of one PE, which is its own neighbour; a PE at an
end has one neighbour, or none, and neither writes to it nor waits for it. In the exchange a
block hears only from the same block of the neighbours, in its transpose from all of theirs, and
reads what any of them sent: all are of a call that the neighbour began after it had finished the
one before. The two share boxes and epochs, and may follow each other in any order.

The ghost cells are those of Kjolstad and Snir, "Ghost Cell Pattern", ParaPLoP 2010. With the
transpose they are what spatial parallelism of convolutions needs: Dryden et al., "Improving
strong-scaling of CNN training by exploiting finer-grained parallelism", IPDPS 2019.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from gpushmem.kernels.parts import begin, end, part_of, wait_for, wait_for_all
from gpushmem.kernels.plan import SLOTS, Plan
from numba import cuda

import gpushmem as shmem
from gpushmem.checks import integer

__all__ = ["HaloExchange", "reference", "reference_accumulate"]

# An array is seen as *lines*, one for each place along the axes before the one that is cut: a line
# has all rows of that place, one behind the other. A line of an edge has `width` rows.
BELOW, ABOVE = 0, 1


@shmem.jit(device=True)
def move(dst, dst_line, src, src_line, line, first, last):
    """Copy elements first to last (exclusive) of lines of `line` elements.

    `dst` and `src` begin at the first element of the first line, and have a line every `dst_line`
    and `src_line` elements. May synchronise the block.
    """
    t, threads = cuda.threadIdx.x, cuda.blockDim.x
    if line < threads:  # threads have elements of several lines
        for k in range(first + t, last, threads):
            number, at = k // line, k % line
            dst[number * dst_line + at] = src[number * src_line + at]
    elif first < last:
        for number in range(first // line, (last - 1) // line + 1):
            start, stop = max(first - number * line, 0), min(last - number * line, line)
            to, of = dst[number * dst_line :], src[number * src_line :]
            shmem.copy_block(to[start:stop], of[start:stop])


@shmem.jit(device=True)
def send_edges(x, x_line, neighbours, edge, outgoing, boxes, arrived, first, last, epoch):
    """Send elements first to last (exclusive) of both edges, which have lines of `edge` elements.

    `boxes` and `outgoing` (2, size), `arrived` (2, blocks): of this slot.
    """
    b = cuda.blockIdx.x
    for side in range(2):
        if neighbours[side] >= 0:
            at = 0 if side == BELOW else x_line - edge
            move(outgoing[side], edge, x[at:], x_line, edge, first, last)
    cuda.syncthreads()
    for side in range(2):
        pe, far = neighbours[side], 1 - side
        if pe >= 0:
            box, part, signal = boxes[far][first:last], outgoing[side][first:last], arrived[far, b:]
            shmem.put_signal_block(box, part, signal, epoch, shmem.SIGNAL_SET, pe)


@shmem.jit(collective=True)
def exchange_halos(x, out, lines, neighbours, boxes, outgoing, arrived, team, epochs):
    """`x` (lines * rows,), `out` with `width` more rows on both sides.

    `neighbours` (2,) are numbers in the world, or -1; `boxes` (SLOTS, 2, size of an edge),
    `outgoing` without slots, `arrived` (SLOTS, 2, blocks).
    """
    epoch, b, blocks = begin(epochs), cuda.blockIdx.x, cuda.gridDim.x
    slot, size = epoch % SLOTS, outgoing.shape[1]
    x_line, out_line, edge = x.size // lines, out.size // lines, size // lines
    first, last = part_of(size, blocks, b)
    send_edges(
        x, x_line, neighbours, edge, outgoing, boxes[slot], arrived[slot], first, last, epoch
    )
    lower, upper = part_of(x.size, blocks, b)
    move(out[edge:], out_line, x, x_line, x_line, lower, upper)
    for side in range(2):
        halo = out[0 if side == BELOW else out_line - edge :]
        if neighbours[side] >= 0:
            wait_for(arrived[slot, side, b:], epoch)
            move(halo, out_line, boxes[slot, side], edge, edge, first, last)
        else:
            for k in range(first + cuda.threadIdx.x, last, cuda.blockDim.x):
                halo[k // edge * out_line + k % edge] = 0
    end(epochs)


@shmem.jit(collective=True)
def add_halos(x, out, lines, neighbours, boxes, outgoing, arrived, team, epochs):
    """As `exchange_halos`, its transpose: `x` has the halos, whose owners add them to `out`."""
    epoch, b, blocks = begin(epochs), cuda.blockIdx.x, cuda.gridDim.x
    slot, size = epoch % SLOTS, outgoing.shape[1]
    x_line, out_line, edge = x.size // lines, out.size // lines, size // lines
    first, last = part_of(size, blocks, b)
    send_edges(
        x, x_line, neighbours, edge, outgoing, boxes[slot], arrived[slot], first, last, epoch
    )
    for side in range(2):
        if neighbours[side] >= 0:
            wait_for_all(arrived[slot, side], epoch)
    below, above = neighbours[BELOW] >= 0, neighbours[ABOVE] >= 0
    first, last = part_of(out.size, blocks, b)
    for number in range(first // out_line, (last - 1) // out_line + 1 if first < last else 0):
        start, stop = max(first - number * out_line, 0), min(last - number * out_line, out_line)
        mine, given = out[number * out_line :], x[number * x_line + edge :]
        low, high = boxes[slot, BELOW, number * edge :], boxes[slot, ABOVE, number * edge :]
        for at in range(start + cuda.threadIdx.x, stop, cuda.blockDim.x):
            total = given[at]
            if below and at < edge:
                total += low[at]
            if above and at >= out_line - edge:
                total += high[at - (out_line - edge)]
            mine[at] = total
    end(epochs)


class HaloExchange(Plan):
    """Surround parts of an array, cut along `axis`, by `width` rows of their neighbours.

        plan(x, out=out)            out: rows of the PE below, x, rows of the PE above
        plan.accumulate(y, out=x)   the transpose: rows of y that are copies are added to their own

    `shape` is that of a part; along `axis` parts may have other lengths, from `width` on, also
    different ones on each PE and in each call. Parts follow each other in the order of the team's
    PEs. At both ends of the whole there are zeros; if it is `periodic`, they are neighbours.
    The workspace is 6 edges.
    """

    moves = fills = True

    def __init__(
        self, *, shape: tuple[int, ...], width: int, dtype: Any, axis: int = 0,
        periodic: bool = False, team: Any = shmem.TEAM_WORLD, blocks: int | None = None,
        threads: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(team, blocks=blocks, threads=threads)
        if not shape or min(shape) < 0:
            raise shmem.ArgumentError(
                f"HaloExchange: shape {shape} is not 1 or more numbers from 0"
            )
        self.axis = integer("HaloExchange: axis", axis, -len(shape), len(shape) - 1) % len(shape)
        self.width = integer("HaloExchange: width", width, 1, 2**31 - 1)
        self.shape, self.dtype, self.periodic = tuple(shape), np.dtype(dtype), periodic
        self._lines = prod(shape[: self.axis])
        self._inner = prod(shape[self.axis + 1 :])
        size = self._lines * self.width * self._inner
        self._neighbours = shmem.to_device(np.array(self._find_neighbours(), "int64"))
        self._boxes, self._arrived = self.boxes(2, size, dtype=dtype), self.signals(2, self.blocks)
        self._outgoing = self.sendable(shmem.device_array((2, size), self.dtype))

    def __call__(self, x: Any, *, out: Any, stream: Any = 0) -> None:
        """Set `out` to `x` and its halos; asynchronous, in `stream`'s order.

        `out` has 2 * `width` more rows than `x` along `axis`. `x` may be the middle of `out`, if
        that is one piece of memory (`out[width:-width]`, along the first axis): then halos alone
        are written. Raises `ArgumentError` if shapes or dtypes are not the plan's.
        """
        self._launch(exchange_halos, x, out, self._rows("x", x), 2 * self.width, stream)

    def accumulate(self, x: Any, *, out: Any, stream: Any = 0) -> None:
        """Set `out` to the middle of `x`, with the halos that others have of it added.

        `x` has 2 * `width` more rows than `out`; what is at the ends of the whole goes nowhere,
        if it is not periodic. First the halo of the PE below is added, then that of the one above.
        """
        rows = self._rows("out", out)
        self._launch(add_halos, x, out, rows + 2 * self.width, -2 * self.width, stream)

    def sends(self) -> tuple[int, int]:
        """Bytes and messages that this PE sends to others in a call."""
        others = sum(pe not in {-1, shmem.my_pe()} for pe in self._find_neighbours())
        return others * self._outgoing.shape[1] * self.dtype.itemsize, others * self.blocks

    def _rows(self, what: str, x: Any) -> int:
        """How many rows a part has along the axis."""
        shape = tuple(self.on_device(what, x).shape)
        rows = int(shape[self.axis]) if len(shape) == len(self.shape) else self.width
        if rows < self.width:
            raise shmem.ArgumentError(
                f"HaloExchange: {what} has {rows} rows along axis {self.axis}, and a halo has "
                f"{self.width}: cut the array into longer parts, or take a smaller width"
            )
        return rows

    def _launch(self, kernel: Any, x: Any, out: Any, rows: int, more: int, stream: Any) -> None:
        """Launch for an `x` with so many rows, and an `out` with so many more."""
        for what, array, n in (("x", x, rows), ("out", out, rows + more)):
            self.expect(what, array, self._with_rows(n), self.dtype)
        self.launch(
            kernel, stream, self.flat(x), self.flat(out), max(self._lines, 1), self._neighbours,
            self._boxes, self._outgoing, self._arrived,
        )  # fmt: skip

    def _with_rows(self, rows: int) -> tuple[int, ...]:
        return (*self.shape[: self.axis], rows, *self.shape[self.axis + 1 :])

    def _find_neighbours(self) -> list[int]:
        """The PEs in the world that are below and above, or -1."""
        found = [self.my_pe - 1, self.my_pe + 1]
        if self.periodic:
            found = [k % self.n_pes for k in found]
        return [
            shmem.team_translate_pe(self.team, k, shmem.TEAM_WORLD)
            if self.team and 0 <= k < self.n_pes else -1
            for k in found
        ]  # fmt: skip


def reference(
    parts: list[np.ndarray[Any, Any]], width: int, axis: int = 0, periodic: bool = False
) -> list[np.ndarray[Any, Any]]:
    """What each PE ends with, from all PEs' parts."""
    whole = np.concatenate(parts, axis)
    around = [(width, width) if k == axis % whole.ndim else (0, 0) for k in range(whole.ndim)]
    padded = np.pad(whole, around, "wrap") if periodic else np.pad(whole, around)
    starts = np.cumsum([0, *(part.shape[axis] for part in parts)])
    return [
        np.take(padded, range(start, start + part.shape[axis] + 2 * width), axis)
        for start, part in zip(starts, parts, strict=False)
    ]


def reference_accumulate(
    parts: list[np.ndarray[Any, Any]], width: int, axis: int = 0, periodic: bool = False
) -> list[np.ndarray[Any, Any]]:
    """What each PE ends with after `accumulate`, from all PEs' arrays with halos."""
    rows = [np.moveaxis(part, axis, 0) for part in parts]
    made = [part[width:-width].copy() for part in rows]
    for k, part in enumerate(made):
        if k > 0 or periodic:
            part[:width] += rows[k - 1][-width:]
        if k < len(made) - 1 or periodic:
            part[-width:] += rows[(k + 1) % len(made)][:width]
    return [np.moveaxis(part, 0, axis) for part in made]
