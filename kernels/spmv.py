"""Multiply a sparse matrix, cut by rows, with a vector, cut likewise: each PE gets what it needs.

    PE 0   a . . | . b      y = A x; PE 0 has rows 0 to 2 and x[0:3], PE 1 the rest
           . c . | . .
           . . d | e .      own columns | columns of others: e needs x[3], b needs x[4]

When the plan is made each PE tells the owners which entries of x it needs, once each, however many
of its rows do: its *halo*. In a call it puts what others need in their boxes, in the order of their
halos, tells them, multiplies its own columns with its part of x meanwhile, waits, and adds what the
other columns give, in rows that have some. Where all memory can be stored to, entries are gathered
into the boxes themselves; otherwise packed, and sent.

A PE speaks with its *friends* alone: those from whom it needs something, or who need something of
it. What a PE sends, of S bytes an item, with B blocks:

    bytes       S for each entry of x, and each PE that needs it
    messages    B for each friend, empty ones among them

Where no GPU multiplies there is nothing to hide the way behind, and a second pass over rows costs
more than a copy of x: if many rows need entries of others, a PE is its own friend, gives itself its
part of x, behind the halo, and when all has come multiplies all columns at once.

**Order.** Entries are followed by the signal of their block, and who multiplies waits for those of
all blocks of all friends. To be a friend is mutual, and friends tell each other in every call, so
the rule of `plan` holds: two sets of boxes suffice. Rows are a block's own, in both halves of a
call.

Own and other columns are stored apart as in PETSc (Balay et al., "Efficient management of
parallelism in object-oriented numerical software libraries", 1997).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from gpushmem.kernels.all_to_all_v import AllToAllV
from gpushmem.kernels.collectives import AllGather
from gpushmem.kernels.parts import begin, end, member, part_of
from gpushmem.kernels.plan import MOST_THREADS, SLOTS, Plan
from numba import cuda

import gpushmem as shmem

__all__ = ["SpMV", "reference"]

DTYPES = "float32", "float64"
ASKED = 4096  # entries of x that a PE asks another one for at once
MANY = 8  # if one of so many rows needs entries of others, all is multiplied at once on CPUs
ONE, TWO, THREE = map(np.uint64, (1, 2, 3))


@shmem.jit(device=True)
def give(x, wanted, packed, box, near, pe):
    """Send entries `wanted` of `x` to `box` on `pe`; or pack them, if it is not `near`."""
    t, threads = cuda.threadIdx.x, cuda.blockDim.x
    if near:
        there = shmem.peer_array(box, pe)
        for i in range(t, wanted.size, threads):
            there[i] = x[wanted[i]]
    else:
        for i in range(t, wanted.size, threads):
            packed[i] = x[wanted[i]]
        cuda.syncthreads()


@shmem.jit(device=True)
def product_of_row(x, starts, columns, values, r, zero):
    """Entries of a row times x, in four sums: none waits for the one before."""
    first, last = starts[r], starts[r + 1]
    a = b = c = d = zero
    for k in range(first, last - 3, 4):
        i = np.uint64(k)  # which needs no test for < 0
        a += values[i] * x[columns[i]]
        b += values[i + ONE] * x[columns[i + ONE]]
        c += values[i + TWO] * x[columns[i + TWO]]
        d += values[i + THREE] * x[columns[i + THREE]]
    for k in range(last - (last - first) % 4, last):
        a += values[np.uint64(k)] * x[columns[np.uint64(k)]]
    return (a + b) + (c + d)


@shmem.jit(collective=True)
def multiply(
    x, y, starts, columns, values, rows, first_rows, far_starts, far_columns, far_values, friends,
    wanted, wanted_from, places, packed, zero, inbox, arrived, near, team, epochs,
):  # fmt: skip
    """Own columns: `starts` (m + 1,), `columns` and `values`; others' of `rows` (k,): `far_...`.

    If `starts` has one element, all columns are among the others, and `rows` has all rows.
    `first_rows` (blocks + 1,): which of `rows` are a block's. PE q gets the entries `wanted` from
    `wanted_from[q]` to `[q + 1]`, at `places[q]` of its box; `friends` (any,) are numbers of the
    team. `inbox` (SLOTS, any), `arrived` (SLOTS, n, blocks).
    """
    me, epoch = shmem.team_my_pe(team), begin(epochs)
    b, t, blocks, threads = cuda.blockIdx.x, cuda.threadIdx.x, cuda.gridDim.x, cuda.blockDim.x
    slot = epoch % SLOTS
    signal = arrived[slot, me, b:]
    for k in range(friends.size):
        to = friends[k]
        pe, start = member(team, to), wanted_from[to]
        first, last = part_of(wanted_from[to + 1] - start, blocks, b)
        box = inbox[slot, places[to] + first : places[to] + last]
        part = packed[start + first : start + last]
        give(x, wanted[start + first : start + last], part, box, near, pe)
        if not near and t == 0:
            shmem.put_signal(box, part, signal, epoch, shmem.SIGNAL_SET, pe)
    if near:
        cuda.syncthreads()
        if t < friends.size:
            shmem.fence()
        for k in range(t, friends.size, threads):
            shmem.signal_op(signal, epoch, shmem.SIGNAL_SET, member(team, friends[k]))
    first, last = part_of(y.size, blocks, b)
    apart = starts.size > 1
    for r in range(first + t, last if apart else first, threads):
        y[r] = product_of_row(x, starts, columns, values, r, zero)
    for k in range(t, friends.size * blocks, threads):
        arrives = arrived[slot, friends[k // blocks], k % blocks :]
        shmem.signal_wait_until(arrives, shmem.CMP_EQ, epoch)
    cuda.syncthreads()
    halo = inbox[slot]
    for k in range(first_rows[b] + t, first_rows[b + 1], threads):
        own = y[rows[k]] if apart else zero
        y[rows[k]] = own + product_of_row(halo, far_starts, far_columns, far_values, k, zero)
    end(epochs)


class Needs(NamedTuple):
    """What PEs need of each other, of numbers that are divided among them in their order."""

    ends: Any  # (n,): where each PE's numbers end
    first: int  # mine
    needed: Any  # numbers of others, in order
    owners: Any  # theirs
    table: Any  # (n, n): how many each PE needs of each


def needs(plan: Plan, size: int, numbers: Any) -> Needs:
    """Find out who needs what: each PE has `size` numbers, and uses some; collective as plans are.

    Raises `ArgumentError` if there is one that nobody has.
    """
    me, n, name = plan.my_pe, plan.n_pes, type(plan).__name__
    with AllGather(size=n, dtype="int64", team=plan.team, blocks=1) as gather:

        def gathered(values: Any) -> Any:
            every = shmem.to_device(np.resize(values, n * n))
            if n > 1:
                gather(plan.sendable(shmem.to_device(values)), out=every)
            return every.numpy().reshape(n, n)

        ends = np.cumsum(gathered(np.full(n, size))[:, 0])
        first = int(ends[me]) - size
        if numbers.size and not 0 <= numbers.min() <= numbers.max() < ends[-1]:
            raise shmem.ArgumentError(
                f"{name}: indices are {numbers.min()} to {numbers.max()}, of {ends[-1]} in all"
            )
        others = (numbers < first) | (numbers >= first + size)
        needed = np.unique(numbers[others]).astype("int64")
        owners = np.searchsorted(ends, needed, side="right")
        return Needs(ends, first, needed, owners, gathered(np.bincount(owners, minlength=n)))


class SpMV(Plan):
    """Multiply a sparse matrix with vectors: `plan(x, out=y)`.

    `matrix` has this PE's rows, those of PE 0 of the team come first, as SciPy's `csr_array`: NumPy
    arrays `indptr` (rows + 1,), `indices` and `data`, float32 or float64; columns are those of the
    whole matrix. `x` (size,) has this PE's part of the vector, by default of as many elements as it
    has rows; `out` (rows,) gets its part of the product. On CPUs, where many rows have columns of
    others, the plan has room for `x` on the heap, twice.
    """

    fills, at_once = True, False

    def __init__(
        self, matrix: Any, *, size: int | None = None, team: Any = shmem.TEAM_WORLD,
        blocks: int | None = None, threads: int | None = None,
    ) -> None:  # fmt: skip
        starts, columns, data = (np.asarray(getattr(matrix, what)) for what in PARTS)
        self.dtype, rows = data.dtype, len(starts) - 1
        self._check(starts, columns, data)
        if threads is None:  # on GPUs as many rows as can be; on CPUs they are added up one by one
            threads = MOST_THREADS if shmem.tuning().multiprocessors else 1
        super().__init__(team, blocks=blocks, threads=threads)
        self.size, self._shape = rows if size is None else size, (rows,)
        self._needs = needs(self, self.size, columns)
        self._wanted, self._friends = self._ask(), self._find_friends()
        self._workspace = self._make_workspace(starts, columns, data)

    def _check(self, starts: Any, columns: Any, data: Any) -> None:
        fits = starts.ndim == 1 and starts.size and columns.shape == data.shape == (starts[-1],)
        if self.dtype.name not in DTYPES or not fits:
            raise shmem.ArgumentError(
                f"SpMV: the matrix has indptr {starts.shape}, indices {columns.shape} and data "
                f"{data.shape} of {self.dtype}; of entries there is one column and one value each, "
                f"{' or '.join(DTYPES)}"
            )

    def _ask(self) -> Any:
        """Tell owners what is needed of theirs; returns which of my elements others need."""
        table, me = self._needs.table, self.my_pe
        counts, received = (shmem.to_device(table[me]) for _ in range(2))
        needed = self.sendable(shmem.to_device(self._needs.needed))
        wanted = shmem.to_device(np.zeros(int(table[:, me].sum()), "int64"))
        with AllToAllV(rows=ASKED, dtype="int64", team=self.team, blocks=1) as exchange:
            if self.n_pes > 1:
                exchange(needed, counts, out=wanted, received=received)
            return wanted.numpy() - self._needs.first

    def _find_friends(self) -> Any:
        """Those to whom this PE sends, or who send to it, the next ones first."""
        table, me = self._needs.table, self.my_pe
        order = (np.arange(1, self.n_pes) + me) % self.n_pes
        return order[(table[order, me] + table[me, order]) > 0]

    def _make_workspace(self, starts: Any, columns: Any, data: Any) -> tuple[Any, ...]:
        ends, first, needed, _, table = self._needs
        mine, me = (columns >= first) & (columns < first + self.size), self.my_pe
        row_of = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
        places = np.where(mine, columns - first, np.searchsorted(needed, columns))
        room, friends, counts = table.sum(axis=1), self._friends, table[:, me].copy()
        from_, wanted = (np.cumsum(table, axis=1) - table)[:, me].copy(), self._wanted
        rows = np.unique(row_of[~mine])
        if not self.tuning.multiprocessors:
            room += np.diff(ends, prepend=0)
            self.at_once = MANY * len(rows) > len(starts) - 1
        if self.at_once:
            places += np.where(mine, len(needed), 0)
            mine, rows = np.zeros_like(mine), np.arange(len(starts) - 1)
            counts[me], from_[me], friends = self.size, len(needed), np.append(friends, me)
            wanted = np.insert(wanted, counts[:me].sum(), np.arange(self.size))
        own_starts = np.searchsorted(row_of[mine], np.arange(1 if self.at_once else len(starts)))
        far_rows = row_of[~mine]
        bounds = [part_of(self._shape[0], self.blocks, b)[0] for b in range(self.blocks)]
        packed = self.sendable(shmem.to_device(np.zeros(wanted.size, self.dtype)))
        arrays = (
            own_starts, places[mine].astype("uint32"), data[mine], rows,
            np.append(np.searchsorted(rows, bounds), len(rows)),
            np.append(np.searchsorted(far_rows, rows), len(far_rows)),
            places[~mine].astype("uint32"), data[~mine], friends, wanted.astype("uint32"),
            np.append(0, np.cumsum(counts)), from_,
        )  # fmt: skip
        return (
            *map(shmem.to_device, arrays), packed, self.dtype.type(0),
            self.boxes(int(room.max()), dtype=self.dtype),
            self.signals(self.n_pes, self.blocks), self.reachable,
        )  # fmt: skip

    def __call__(self, x: Any, *, out: Any, stream: Any = 0) -> None:
        """Set `out` to this PE's part of the product; asynchronous, in `stream`'s order.

        The two are apart from each other. Raises `ArgumentError` for other shapes or dtypes.
        """
        self.expect("x", x, (self.size,), self.dtype)
        self.expect("out", out, self._shape, self.dtype)
        self.launch(multiply, stream, x, out, *self._workspace)

    def sends(self) -> tuple[int, int]:
        """Bytes and messages that this PE sends in a call."""
        return self._wanted.size * self.dtype.itemsize, len(self._friends) * self.blocks


PARTS = "indptr", "indices", "data"  # of a matrix


def reference(matrices: list[Any], x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The product with all of `x`, of the rows of all PEs, in float64."""
    products = []
    for matrix in matrices:
        row_of = np.repeat(np.arange(len(matrix.indptr) - 1), np.diff(matrix.indptr))
        terms = matrix.data.astype(float) * x[matrix.indices]
        products.append(np.bincount(row_of, terms, len(matrix.indptr) - 1))
    return np.concatenate(products)
