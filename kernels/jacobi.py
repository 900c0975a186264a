"""Jacobi iteration on a grid cut among the PEs, 2-D or 3-D: one kernel for all iterations.

A step replaces every cell by the mean of its 4 (in 3-D: 6) neighbours. Each PE has a block of the
grid, and round it a layer of halo cells: copies of the neighbours' outer cells, or, at the edge
of the grid, values that stay as they are. In every iteration a block of the kernel

    1. edges       computes the cells that others need              +-----------------+
    2. send        puts them in the neighbours' boxes, with a       |  1 1 1 1 1 1 1  |
                   signal                                           |  1 3 3 3 3 3 1  |  -->  box
    3. interior    computes the rest while the halos fly            |  1 3 3 3 3 3 1  |  <--
    4. receive     waits for the neighbours' signals, and copies    |  1 1 1 1 1 1 1  |
                   what came from the boxes to the halo             +-----------------+

and no PE waits for any that is not its neighbour. The blocks of one PE cut its part along the
first axis in *slabs*; a slab's neighbours above and below may be on the same PE, which reads their
rows where they are, and then there is only the signal. So to a slab it is all one: it has up to 4
(6) neighbours, sends to each, then hears from each, and no grid has to meet.

The field is there twice, old and new, and swapped after each iteration. What a PE sends for one
iteration of a local block of (nz, ny, nx) cells (nz, nx in 2-D), with a neighbour on each side:

              bytes / itemsize                                     messages
    2-D       2 (nx + 2) + 2 nz                                    2 + 2 blocks
    3-D       2 (ny + 2) (nx + 2) + 2 nz (nx + 2) + 2 nz ny        2 + 4 blocks

to 3 additions and a multiplication for each of its cells (5 in 3-D), and reading and writing it.

**Two slots suffice.** Iterations are numbered on from call to call, and number e is an epoch in the
sense of `plan`: it uses slot e % 2. Let slabs P and Q be neighbours. P writes to slot e % 2 of Q in
its iteration e + 2, after it has finished e + 1, where it waited for Q's signal e + 1. That one Q
sent in step 2 of iteration e + 1, after it had finished e, and with it step 4, in which it had
seen P's signal e and read the box. So the box has been read, and the signal seen, when they are
overwritten. The same two facts keep slabs that share a field apart: who sends e has, with step 1,
written its outer rows of the new field and done its last reads of the neighbour's rows of the old
one, which the neighbour overwrites in iteration e + 1, behind the signal.

The ghost cells are those of Kjolstad and Snir, "Ghost Cell Pattern", ParaPLoP 2010. The nvshmem
variant of NVIDIA's multi-gpu-programming-models puts from within the kernel that computes, too,
but launches one for each iteration, with a barrier or a signalling kernel between.
"""

from __future__ import annotations

from functools import cache
from itertools import product
from math import prod
from typing import Any

import numpy as np
from gpushmem.kernels.decode_lanes import each, pairs
from gpushmem.kernels.parts import begin, end_at, tell, wait_for
from gpushmem.kernels.plan import SLOTS, Plan
from numba import cuda

import gpushmem as shmem
from gpushmem.checks import integer, on_host

__all__ = ["Jacobi", "reference"]

# Kernels see 2-D fields as 3-D ones, (nz + 2, 1, nx + 2). A face is 2 * axis + side, and what is
# sent from a PE's low face arrives at its neighbour's high one.
LOW, HIGH = 0, 1


@shmem.jit(device=True)
def slab(u, b, blocks):
    """First and last (exclusive) of the planes of `u` that are block `b`'s; how many have some."""
    n = u.shape[0] - 2
    used = min(n, blocks)
    return 1 + min(b, used) * n // used, 1 + min(b + 1, used) * n // used, used


@shmem.jit(device=True)
def inner_rows(u):
    """First and last (exclusive) of the rows of a plane of `u` that are not halo."""
    return (0, 1) if u.shape[1] == 1 else (1, u.shape[1] - 1)


@shmem.jit(device=True)
def mean(old, i, j, x, weight):
    """The new value of a cell; the order of the additions is part of the result."""
    total = old[i, j, x - 1] + old[i, j, x + 1]
    if old.shape[1] > 1:
        total = total + old[i, j - 1, x] + old[i, j + 1, x]
    return weight * (total + old[i - 1, j, x] + old[i + 1, j, x])


@shmem.jit(device=True)
def relax(new, old, weight, first, last, top, bottom):
    """Compute rows top to bottom (exclusive) of planes first to last (exclusive)."""
    for i in range(first, last):
        for j in range(top, bottom):
            row = new[i, j]
            for x in range(1 + cuda.threadIdx.x, row.size - 1, cuda.blockDim.x):
                row[x] = mean(old, i, j, x, weight)


@cache
def for_gpus(ndim: int, columns: int, itemsize: int) -> Any:  # noqa: PLR0915
    """The kernel with one like `relax` for GPUs, which need many loads under way to keep HBM busy.

    A thread has `wide` adjacent cells of several rows that follow each other (in 3-D: of a plane),
    loads all that they are made of, then stores. Where rows have an even number of cells it has
    two, so a load has both, and what has no partner, the first and the last of a row, is computed
    one by one. An unsigned index is not asked whether it counts from the end.
    """
    deep, wide = ndim > 2, 1 if columns % 2 else 2
    several, width = rows_at_once(ndim, itemsize), np.uint64(wide)
    all_rows = tuple(range(several))

    @shmem.jit(device=True)
    def cells(u, i, j, k, x):
        """Of the k-th row from (i, j) on."""
        row = u[i, j + k] if deep else u[i + k, j]
        return shmem.load_vector(row, x, 2) if wide == 2 else (row[x],)

    @shmem.jit(device=True)
    def in_row(_, given, at):
        """The cells of a row, and those on both sides of them; behind the last row, of that."""
        old, i, j, k, end, x = given
        k = min(k + at, end)
        row = old[i, j + k] if deep else old[i + k, j]
        return row[x - ONE], cells(old, i, j, k, x), row[x + width]

    @shmem.jit(device=True)
    def in_plane(_, given, at):
        old, i, j, k, end, x = given
        return cells(old, i, j, min(k + at, end), x)

    @shmem.jit(device=True)
    def middle(three, given, at):
        return three[1]

    @shmem.jit(device=True)
    def sides_and_above(three, above, given):
        left, here, right = three
        if wide == 1:
            return (left + right + above[0],)
        return left + here[1] + above[0], here[0] + right + above[1]

    @shmem.jit(device=True)
    def plus(a, b, given):
        return (a[0] + b[0],) if wide == 1 else (a[0] + b[0], a[1] + b[1])

    @shmem.jit(device=True)
    def store(total, given, at):
        new, i, j, k, end, x, weight = given
        if k + at < end:
            row = new[i, j + k + at] if deep else new[i + k + at, j]
            if wide == 1:
                row[x] = weight * total[0]
            else:
                shmem.store_vector(row, x, (weight * total[0], weight * total[1]))
        return at

    load_rows, middles, store_all = (each(several, one) for one in (in_row, middle, store))
    load_plane, begin_sums, add = (
        each(several, in_plane), pairs(several, sides_and_above), pairs(several, plus),
    )  # fmt: skip

    @shmem.jit(device=True)
    def relax_rows(new, old, weight, i, j, count):
        """`count` rows from (i, j) on; the order of the additions is that of `mean`."""
        for k in range(0, count, several):
            for c in range(cuda.threadIdx.x, new.shape[2] // wide - 2, cuda.blockDim.x):
                x = np.uint64(wide + wide * c)
                given = old, i, j, k, count, x
                above, rows = cells(old, i, j, k - 1, x), load_rows(all_rows, given, 0)
                below, here = cells(old, i, j, min(k + several, count), x), middles(rows, 0, 0)
                if deep:
                    before = load_plane(all_rows, (old, i - 1, j, k, count, x), 0)
                    behind = load_plane(all_rows, (old, i + 1, j, k, count, x), 0)
                sums = begin_sums(rows, (above, *here[:-1]), 0)
                sums = add(sums, (*here[1:], below), 0)
                if deep:
                    sums = add(add(sums, before, 0), behind, 0)
                store_all(sums, (new, i, j, k, count, x, weight), 0)

    @shmem.jit(device=True)
    def relax_several(new, old, weight, first, last, top, bottom):
        t, threads, size, rows = cuda.threadIdx.x, cuda.blockDim.x, new.shape[2], bottom - top
        if (new.ctypes.data | old.ctypes.data) % (wide * new.itemsize):
            relax(new, old, weight, first, last, top, bottom)
            return
        if deep:
            for i in range(first, last):
                relax_rows(new, old, weight, i, top, rows)
        else:
            relax_rows(new, old, weight, first, top, last - first)
        if wide > 1:
            for k in range(t, 2 * (last - first) * rows, threads):
                i, j, x = first + k // 2 // rows, top + k // 2 % rows, 1 + k % 2 * (size - 3)
                new[i, j, x] = mean(old, i, j, x, weight)

    return iterate_by(relax_several)


ONE = np.uint64(1)


def rows_at_once(ndim: int, itemsize: int) -> int:
    """How many rows a thread of a GPU has cells of at once: as registers allow."""
    return 8 if ndim * itemsize <= 8 else 4 if ndim * itemsize <= 16 else 2


@shmem.jit(device=True)
def edges(new, old, weight, neighbours, first, last):
    """Compute what others need of a slab: its first and last plane, and the others' rims."""
    top, bottom = inner_rows(new)
    rows, t, threads = bottom - top, cuda.threadIdx.x, cuda.blockDim.x
    relax(new, old, weight, first, first + 1, top, bottom)
    relax(new, old, weight, max(last - 1, first + 1), last, top, bottom)
    for side in range(2):
        if neighbours[2 + side] >= 0:
            j = top if side == LOW else bottom - 1
            relax(new, old, weight, first + 1, last - 1, j, j + 1)
        if neighbours[4 + side] >= 0:
            x = 1 if side == LOW else new.shape[2] - 2
            for k in range(t, (last - first - 2) * rows, threads):
                i, j = first + 1 + k // rows, top + k % rows
                new[i, j, x] = mean(old, i, j, x, weight)


@shmem.jit(device=True)
def inside(new, neighbours, first, last):
    """Planes and rows of the rest, of which the ends may be there already, as `relax` has them."""
    top, bottom = inner_rows(new)
    return first + 1, last - 1, top + (neighbours[2] >= 0), bottom - (neighbours[3] >= 0)


@shmem.jit(device=True)
def send(u, number, neighbours, boxes, outgoing, arrived, first, last, used):
    """Send the outer cells of a slab to its neighbours, and tell those that can see them."""
    slot, b = number % SLOTS, cuda.blockIdx.x
    top, bottom = inner_rows(u)
    rows, t, threads = bottom - top, cuda.threadIdx.x, cuda.blockDim.x
    cuda.syncthreads()  # other threads have computed what a thread packs
    # Pack rows (axis 1) and cells (axis 2); planes are sent as they are.
    for side in range(2):
        if neighbours[2 + side] >= 0:
            j = top if side == LOW else bottom - 1
            for i in range(first, last):
                row, packed = u[i, j], outgoing[2 + side, (i - 1) * u.shape[2] :]
                for x in range(t, u.shape[2], threads):
                    packed[x] = row[x]
        if neighbours[4 + side] >= 0:
            x = 1 if side == LOW else u.shape[2] - 2
            for k in range((first - 1) * rows + t, (last - 1) * rows, threads):
                outgoing[4 + side, k] = u[1 + k // rows, top + k % rows, x]
    cuda.syncthreads()
    # Signals to LOW are counted from the last slab: who sends does not know how many there are.
    for side in range(2):
        plane, far = (u[first], HIGH) if side == LOW else (u[last - 1], LOW)
        place = b if side == LOW else used - 1 - b
        pe = neighbours[side]
        if place > 0:
            tell(arrived[slot, far, used - place :], number, shmem.my_pe())
        elif pe >= 0:
            box, signal = boxes[slot, far][: plane.size], arrived[slot, far, 0:]
            shmem.put_signal_block(box, plane, signal, number, shmem.SIGNAL_SET, pe)
    for face in range(2, 6):
        far, pe = face ^ 1, neighbours[face]
        if pe >= 0:
            cells = u.shape[2] if face < 4 else rows
            start, stop = (first - 1) * cells, (last - 1) * cells
            box, signal = boxes[slot, far][start:stop], arrived[slot, far, b:]
            part = outgoing[face][start:stop]
            shmem.put_signal_block(box, part, signal, number, shmem.SIGNAL_SET, pe)


@shmem.jit(device=True)
def receive(u, number, neighbours, boxes, arrived, first, last, used):
    """Wait until all neighbours have sent, and fill the halo. Synchronises the block."""
    slot, b = number % SLOTS, cuda.blockIdx.x
    top, bottom = inner_rows(u)
    rows, n, t, threads = bottom - top, u.shape[2], cuda.threadIdx.x, cuda.blockDim.x
    for side in range(2):
        place = b if side == LOW else used - 1 - b
        if place > 0 or neighbours[side] >= 0:
            wait_for(arrived[slot, side, place:], number)
        if place == 0 and neighbours[side] >= 0:
            i, box = 0 if side == LOW else u.shape[0] - 1, boxes[slot, side]
            for j in range(top, bottom):
                fill(u[i, j], box[j * n :])
    for side in range(2):
        if neighbours[2 + side] >= 0:
            wait_for(arrived[slot, 2 + side, b:], number)
            j, box = 0 if side == LOW else bottom, boxes[slot, 2 + side]
            for i in range(first, last):
                fill(u[i, j], box[(i - 1) * n :])
        if neighbours[4 + side] >= 0:
            wait_for(arrived[slot, 4 + side, b:], number)
            x, box = 0 if side == LOW else n - 1, boxes[slot, 4 + side]
            for k in range((first - 1) * rows + t, (last - 1) * rows, threads):
                u[1 + k // rows, top + k % rows, x] = box[k]
    cuda.syncthreads()


@shmem.jit(device=True)
def fill(row, box):
    """Copy a row but for its ends."""
    for x in range(1 + cuda.threadIdx.x, row.size - 1, cuda.blockDim.x):
        row[x] = box[x]


@shmem.jit(device=True)
def with_halo(u, first, last):
    """The planes of a slab, and those of the halo next to it: first and last (exclusive)."""
    return first - (first == 1), last + (last == u.shape[0] - 1)


@shmem.jit(device=True)
def copy_halo(dst, src, first, last):
    """Copy the halo round a slab; its corners too."""
    planes, rows, n = src.shape
    for i in range(*with_halo(src, first, last)):
        for j in range(rows):
            whole = i in (0, planes - 1) or (rows > 1 and j in (0, rows - 1))
            step = 1 if whole else n - 1
            for x in range(step * cuda.threadIdx.x, n, step * cuda.blockDim.x):
                dst[i, j, x] = src[i, j, x]


@shmem.jit(device=True)
def swap(u, other, first, last):
    """Swap two fields, a slab of them."""
    for i in range(*with_halo(u, first, last)):
        for j in range(u.shape[1]):
            a, b = u[i, j], other[i, j]
            for x in range(cuda.threadIdx.x, a.size, cuda.blockDim.x):
                a[x], b[x] = b[x], a[x]


def iterate_by(relax_inside):
    """The kernel that computes the interior with a function, `relax` or one like it."""

    @shmem.jit(collective=True)
    def iterate(
        u, other, iterations, weight, neighbours, boxes, outgoing, arrived, team, epochs
    ):  # fmt: skip
        """`u`, `other` (nz + 2, ny + 2 or 1, nx + 2): afterwards the last state and that before.

        `neighbours` (6,) are numbers in the world, or -1; `boxes` (SLOTS, 6, face), `outgoing`
        (6, face), `arrived` (SLOTS, 6, blocks).
        """
        number = begin(epochs)
        first, last, used = slab(u, cuda.blockIdx.x, cuda.gridDim.x)
        if first < last:
            copy_halo(other, u, first, last)
            old, new = u, other
            for k in range(iterations):
                edges(new, old, weight, neighbours, first, last)
                send(new, number + k, neighbours, boxes, outgoing, arrived, first, last, used)
                relax_inside(new, old, weight, *inside(new, neighbours, first, last))
                receive(new, number + k, neighbours, boxes, arrived, first, last, used)
                old, new = new, old
            if iterations % 2:
                swap(u, other, first, last)
        end_at(epochs, number + iterations - 1)

    return iterate


iterate = iterate_by(relax)


@shmem.jit(collective=True)
def exchange(u, neighbours, boxes, outgoing, arrived, team, epochs):
    """As in `iterate`: fill the halo of `u`, no more."""
    number = begin(epochs)
    first, last, used = slab(u, cuda.blockIdx.x, cuda.gridDim.x)
    if first < last:
        send(u, number, neighbours, boxes, outgoing, arrived, first, last, used)
        receive(u, number, neighbours, boxes, arrived, first, last, used)
    end_at(epochs, number)


@shmem.jit
def largest_change(u, other, found):
    """Raise `found` (1,) to the largest |u - other| of the inner cells."""
    top, bottom = inner_rows(u)
    rows, most = bottom - top, 0.0
    for k in range(cuda.blockIdx.x, (u.shape[0] - 2) * rows, cuda.gridDim.x):
        a, b = u[1 + k // rows, top + k % rows], other[1 + k // rows, top + k % rows]
        for x in range(1 + cuda.threadIdx.x, a.size - 1, cuda.blockDim.x):
            most = max(most, float(abs(a[x] - b[x])))
    cuda.atomic.max(found, 0, most)


DTYPES = ("float16", "float32", "float64")
THREADS = 512  # on GPUs: of 2 bytes that a load has it takes many threads' to keep HBM busy


class Jacobi(Plan):
    """Iterate on a grid of `shape` cells, (ny, nx) or (nz, ny, nx), cut among a team's PEs.

    `grid` says into how many parts each axis is cut; their product is the team's size. By default
    it is such that PEs send least. Parts are as of `numpy.array_split`, and
    PEs are numbered along the last axis first. Along a `periodic` axis (one bool for all, or one
    each) the first and last cells are neighbours; else there is a layer of fixed values outside.

        field = np.zeros((ny + 2, nx + 2), "float32")     the same on all PEs, with its outer layer
        field[0] = 1
        with Jacobi((ny, nx), dtype="float32") as plan:
            u = plan.scatter(field)
            plan(u, 1000)
            print(plan.residual(u), plan.gather(u))

    `local` are this PE's slices of the grid (without the outer layer), `local_shape` is how many
    cells that is. dtypes: float16, float32, float64; numbers are added in their own dtype, always
    in the same order, so the result has the same bits however the grid is cut.

    The workspace is one more local block, and 18 faces.
    """

    moves = fills = one_thread = True

    def __init__(
        self, *, shape: tuple[int, ...], grid: tuple[int, ...] | None = None,
        dtype: Any = "float64", team: Any = shmem.TEAM_WORLD,
        periodic: bool | tuple[bool, ...] = False,
        blocks: int | None = None, threads: int | None = None,
    ) -> None:  # fmt: skip
        if threads is None and shmem.tuning().multiprocessors:
            threads = THREADS
        super().__init__(team, blocks=blocks, threads=threads)
        self.shape, self.dtype, ndim = tuple(shape), np.dtype(dtype), len(shape)
        if ndim not in {2, 3} or min(shape) < 1:
            raise shmem.ArgumentError(f"Jacobi: shape {shape} is not 2 or 3 numbers from 1 on")
        if self.dtype.name not in DTYPES:
            raise shmem.ArgumentError(f"Jacobi: dtype {dtype} is not one of {', '.join(DTYPES)}")
        self.grid = tuple(grid or smallest_faces(self.shape, self.n_pes))
        self.periodic = (periodic,) * ndim if isinstance(periodic, bool) else tuple(periodic)
        if not len(self.grid) == len(self.periodic) == ndim:
            raise shmem.ArgumentError(
                f"Jacobi: shape {self.shape} has {ndim} axes, grid {self.grid} {len(self.grid)}, "
                f"periodic {len(self.periodic)}"
            )
        if team and prod(self.grid) != self.n_pes:
            raise shmem.ArgumentError(
                f"Jacobi: grid {self.grid} is for {prod(self.grid)} PEs, the team has {self.n_pes}"
            )
        if any(parts > n for parts, n in zip(self.grid, self.shape, strict=True)):
            raise shmem.ArgumentError(
                f"Jacobi: grid {self.grid} cuts an axis of {self.shape} cells into more parts than "
                f"it has cells. Take fewer parts there"
            )
        self.local = self._part(self.my_pe if team else 0)
        self.local_shape = tuple(s.stop - s.start for s in self.local)
        self._weight = self.dtype.type(1 / (2 * ndim))
        self._kernel = iterate
        if self.tuning.multiprocessors:
            self._kernel = for_gpus(ndim, self.local_shape[-1], self.dtype.itemsize)
        self._neighbours = shmem.to_device(np.array(self._find_neighbours(), "int64"))
        self._other = self.sendable(
            shmem.device_array(as_3d(tuple(n + 2 for n in self.local_shape)), self.dtype)
        )
        # No part is larger than the first.
        z, y, x = as_3d(tuple(s.stop + 2 for s in self._part(0)))
        face = max(y * x, z * y, z * x if ndim == 3 else 0)
        self._boxes, self._arrived = self.boxes(6, face, dtype=dtype), self.signals(6, self.blocks)
        self._outgoing = self.sendable(shmem.device_array((6, face), self.dtype))
        self._norms = self.memory(2, dtype="float64")
        self._gathered: Any = None
        self._known: tuple[Any, Any] = (None, None)

    def __call__(self, u: Any, iterations: int, *, stream: Any = 0) -> None:
        """Replace `u` by its state after so many iterations; asynchronous, in `stream`'s order.

        `u` is a device array of this PE's cells with their halo: `local_shape` + 2. Its halo must
        be that of the state before, as `scatter`, a call, and `exchange` leave it. Raises
        `ArgumentError` for another shape or dtype, and if there is nothing to iterate. An odd
        number of iterations costs one more pass over the memory.
        """
        iterations = integer("Jacobi: iterations", iterations)
        if iterations < 1:
            raise shmem.ArgumentError(f"Jacobi: {iterations} iterations, at least 1 is possible")
        self.launch(
            self._kernel, stream, self._checked(u), self._other, iterations, self._weight,
            self._neighbours, self._boxes, self._outgoing, self._arrived,
        )  # fmt: skip

    def exchange(self, u: Any, *, stream: Any = 0) -> None:
        """Refresh the halo of `u`: call it after you have changed cells of `u`.

        All PEs of the team call. Asynchronous, in `stream`'s order.
        """
        self.launch(
            exchange, stream, self._checked(u), self._neighbours, self._boxes, self._outgoing,
            self._arrived,
        )  # fmt: skip

    def residual(self, u: Any) -> float:
        """Return by how much a cell changed in the last iteration, the most on any PE of the team.

        `u` is the array of the last call. All PEs of the team call; waits for the kernels.
        """
        mine, largest = self._norms[:1], self._norms[1:]
        mine.copy_from(np.zeros(1))
        largest_change[self.blocks, self.threads](self._checked(u), self._other, mine)
        shmem.reduce(self.team, largest, mine, "max")
        return float(largest.numpy()[0])

    def scatter(self, field: np.ndarray[Any, Any]) -> Any:
        """Return this PE's part of a field, with halo, as a new device array (see `sendable`).

        `field` is a host array of `shape` + 2, the same on all PEs. Of its outer layer only what
        is next to an axis that is not periodic counts.
        """
        field = on_host("Jacobi: field", field)
        self.fits("field", field, tuple(n + 2 for n in self.shape), self.dtype)
        cells = [np.arange(s.start, s.stop + 2) for s in self.local]
        wrapped = zip(cells, self.shape, self.periodic, strict=True)
        places = [(c - 1) % n + 1 if periodic else c for c, n, periodic in wrapped]
        return self.sendable(shmem.to_device(np.ascontiguousarray(field[np.ix_(*places)])))

    def gather(self, u: Any) -> np.ndarray[Any, Any]:
        """Return all PEs' parts together, without halo: a host array of `shape`, on every PE.

        The first call allocates what it needs, n + 1 local blocks: it is collective over the world
        (to a PE in no team it returns zeros), the others are over the team. Waits for the kernels.
        """
        parts = [self._part(pe) for pe in range(prod(self.grid))]
        sizes = [prod(s.stop - s.start for s in part) for part in parts]
        if self._gathered is None:
            self._gathered = (
                self.memory(sizes[0], dtype=self.dtype),
                self.memory(len(parts), sizes[0], dtype=self.dtype),
            )
        if not self.team:
            return np.zeros(self.shape, self.dtype)
        mine, every = self._gathered
        inner = self.on_device("u", u).numpy()[(slice(1, -1),) * u.ndim].reshape(-1)
        mine.copy_from(np.resize(inner, sizes[0]))
        shmem.fcollect(self.team, every, mine)
        result = np.empty(self.shape, self.dtype)
        for part, size, found in zip(parts, sizes, every.numpy(), strict=True):
            result[part] = found[:size].reshape(result[part].shape)
        return result

    def sends(self, iterations: int = 1) -> tuple[int, int]:
        """Bytes and messages that this PE sends to others in a call of so many iterations."""
        z, y, x = self._other.shape
        nbytes = messages = 0
        for face, pe in enumerate(self._find_neighbours()):
            if pe not in {-1, shmem.my_pe()}:
                nbytes += (y * x, (z - 2) * x, (z - 2) * max(y - 2, 1))[face // 2]
                messages += 1 if face < 2 else min(self.blocks, z - 2)
        return iterations * nbytes * self.dtype.itemsize, iterations * messages

    def _part(self, pe: int) -> tuple[slice, ...]:
        """The slices of the grid that are those of PE `pe` of the team."""
        cuts = zip(np.unravel_index(pe, self.grid), self.shape, self.grid, strict=True)
        return tuple(
            slice(cut(n, parts, int(k)), cut(n, parts, int(k) + 1)) for k, n, parts in cuts
        )

    def _find_neighbours(self) -> list[int]:
        """For each face of the kernels the PE in the world that it adjoins, or -1."""
        result = [-1] * 6
        place = np.unravel_index(self.my_pe, self.grid) if self.team else ()
        for axis, k in enumerate(place):
            kernels_axis = axis if len(self.shape) == 3 else 2 * axis
            for side, step in ((LOW, -1), (HIGH, 1)):
                to = int(k) + step
                if self.periodic[axis] or 0 <= to < self.grid[axis]:
                    there = (*place[:axis], to % self.grid[axis], *place[axis + 1 :])
                    pe = int(np.ravel_multi_index(there, self.grid))
                    world = shmem.team_translate_pe(self.team, pe, shmem.TEAM_WORLD)
                    result[2 * kernels_axis + side] = world
        return result

    def _checked(self, u: Any) -> Any:
        """Return `u` as the kernels see it, the same object for the same array; see `expect`."""
        u = self.on_device("u", u)
        self.fits("u", u, tuple(n + 2 for n in self.local_shape), self.dtype)
        if u is not self._known[0]:
            self._known = u, u.reshape(self._other.shape)
        return self._known[1]


def as_3d(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """The shape in which kernels see an array of 2 or 3 axes."""
    return (shape[0], shape[1] if len(shape) == 3 else 1, shape[-1])


def cut(n: int, parts: int, k: int) -> int:
    """Where part `k` of `n` cells begins, as of `numpy.array_split`."""
    return k * (n // parts) + min(k, n % parts)


def smallest_faces(shape: tuple[int, ...], n_pes: int) -> tuple[int, ...]:
    """How to cut a grid for so many PEs, so that the PE that sends most sends least.

    Of equal ways that which cuts the first axes: there faces lie in memory as they are sent.
    """
    ways = [
        way
        for way in product(range(1, n_pes + 1), repeat=len(shape))
        if prod(way) == n_pes and all(parts <= n for parts, n in zip(way, shape, strict=True))
    ]
    if not ways:
        raise shmem.ArgumentError(
            f"Jacobi: a grid of {shape} cells cannot be cut for {n_pes} PEs: no parts of its axes "
            f"multiply to {n_pes}. Take a team of another size"
        )

    def sent(way: tuple[int, ...]) -> int:
        local = [-(-n // parts) for n, parts in zip(shape, way, strict=True)]
        cuts = zip(local, way, strict=True)
        return sum(min(parts - 1, 2) * prod(local) // n for n, parts in cuts)

    return min(ways, key=lambda way: (sent(way), *(-parts for parts in way)))


def reference(
    field: np.ndarray[Any, Any], iterations: int, periodic: bool | tuple[bool, ...] = False
) -> np.ndarray[Any, Any]:
    """A whole field, with its outer layer, after so many iterations: the same bits.

    Neighbours are added from the last axis to the first, of each the lower one first.
    """
    ndim, new = field.ndim, field.copy()
    axes = [periodic] * ndim if isinstance(periodic, bool) else periodic
    weight = field.dtype.type(1 / (2 * ndim))
    inner = (slice(1, -1),) * ndim

    def beside(axis: int, start: int, stop: int | None) -> np.ndarray[Any, Any]:
        where = (*inner[:axis], slice(start, stop), *inner[axis + 1 :])
        return old[where]

    for step in range(iterations + 1):
        if step > 0:
            old = new.copy()
            total = beside(ndim - 1, 0, -2) + beside(ndim - 1, 2, None)
            for axis in reversed(range(ndim - 1)):
                total += beside(axis, 0, -2)
                total += beside(axis, 2, None)
            new[inner] = weight * total
        for axis in range(ndim):
            if axes[axis]:
                layers = np.moveaxis(new, axis, 0)
                layers[0], layers[-1] = layers[-2], layers[1]
    return new
