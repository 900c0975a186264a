"""Reads of memory that nobody has written before: of symmetric arrays, and of shared memory.

`zeros`, `full` and so on write what they allocate, `empty` does not; a block's shared memory is
unwritten when it starts. A read is reported if every write to the same bytes comes after it in
every run. Of atomic operations, which race with nothing, others may also be in no order with it:
then it comes first in some run. Copies (`put`, `get`, `a.numpy()`) are no reads: they may take
along what is not used. What races is reported as a race.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from gpushmem.check import log
from gpushmem.check.accesses import SHARED_MEMORY, Access
from gpushmem.check.calls import Call
from gpushmem.check.history import History
from gpushmem.check.log import BLOCK_BITS
from gpushmem.check.pe_memory import Pe
from gpushmem.check.vector_clock import CALLED, Clock
from gpushmem.ops import SIGNAL_ADD
from gpushmem.simt.observe import LOAD

__all__ = ["Unwritten", "unwritten"]

NEVER = np.iinfo(np.int64).max
MOST_CELLS, CELL = 1 << 22, 8
SHORT = 8  # elements of a run, and cells of an element
OFFSET, ALIGNED = (1 << BLOCK_BITS) - 1, 16
WORK = 20_000  # comparisons of reads at one line with writes
RUNS, ELEMENTS = 64, 4  # of the runs at a line, and of the elements of a run, as many are examined
WRITE_ONLY = "p", "atomic_set", "atomic_swap"  # of a swap one may want the new value alone
COMPUTE = (
    "reduce",
    "reducescatter",
    "multimem_reduce",
    "reduce_rows",
    "reduce_local",
    "sum_rows",
    "gemm",
    "gemm_batched",
    "gemm_scaled",
    "mbarrier_arrive",
    "mbarrier_arrive_and_expect_tx",
    "mbarrier_wait",
)  # other operations copy


class Unwritten(NamedTuple):
    """A read of memory that is unwritten, and how often there are such at this line."""

    access: Access
    thread: int
    place: int  # its first byte
    array: dict[str, Any] | None  # of symmetric memory
    seen: int


def unwritten(history: History) -> list[Unwritten]:
    """All of them, those of one line as one."""
    if not all(_is_complete(pe) for pe in history.pes.values()):
        return []  # what is not in the logs may have been a write
    found: dict[Any, Unwritten] = {}
    work: dict[Any, int] = defaultdict(lambda: WORK)
    for memory in _memories(history):
        for read in memory.reads():
            key = read.site, read.op and read.op.name
            if work[key] > 0:
                one = memory.unwritten(read)
                work[key] -= memory.compared
                if one is not None:
                    first = found.get(key) or Unwritten(
                        one._replace(writes=False), one.thread, one.start, memory.array, 0
                    )
                    found[key] = first._replace(seen=first.seen + 1)
    return list(found.values())


def _is_complete(pe: Pe) -> bool:
    """Whether all that a PE did is in its log: it has not been killed, and there was room."""
    kinds = pe.trace.records["kind"]
    ended = np.sum(kinds == log.BEGIN) == np.sum(kinds == log.END)
    return bool(ended and np.all(kinds)) and not pe.trace.lost


# --- memories


def _memories(history: History) -> Iterator[_Memory]:
    """Each array of each PE, and the shared memory of each launch."""
    spaces = defaultdict(list)
    for access in history.accesses + history.exposed:
        spaces[access.space].append(access)
    for pe in history.pes.values():
        yield from _arrays(history, pe, spaces["heap", pe.pe])
        yield from _shared(history, pe, spaces)


def _arrays(history: History, owner: Pe, accesses: list[Access]) -> Iterator[_Memory]:
    parts = {pe.pe: pe.plain[pe.plain["space"] == owner.pe] for pe in history.pes.values()}
    rows = np.concatenate(list(parts.values()))
    pes = np.repeat(list(parts), [len(part) for part in parts.values()])
    low, end, stamp = (np.ascontiguousarray(rows[name]) for name in ("low", "end", "stamp"))
    for k, array, until in _lives(owner):
        if until <= history.since:
            continue
        area = _Area(array["array"], array["array"] + array["bytes"], array["item"])
        here = (low < area.end) & (end > area.low) & (stamp >= array["since"]) & (stamp < until)
        others = [
            a for a in accesses
            if a.low < area.end and a.end > area.low and array["since"] <= a.stamp < until
        ]  # fmt: skip
        before = history.before.written.get((owner.pe, k))
        memory = _Memory(history, area, rows[here], pes[here], others, array, before)
        history.arrays[owner.pe, k] = memory
        yield memory


def _lives(pe: Pe) -> Iterator[tuple[int, dict[str, Any], int]]:
    """The arrays of a PE with their numbers, and the stamp when their memory is allocated again."""
    for k, array in enumerate(pe.arrays):
        end = array["array"] + array["bytes"]
        again = (
            later["since"]
            for later in pe.arrays[k + 1 :]
            if later["array"] < end and later["array"] + later["bytes"] > array["array"]
        )
        if array["bytes"]:
            yield k, array, next(again, NEVER)


def _shared(history: History, pe: Pe, spaces: dict[Any, list[Access]]) -> Iterator[_Memory]:
    every = pe.plain[pe.plain["space"] == SHARED_MEMORY]
    of_operations = {space[2] for space in spaces if space[:2] == ("shared", pe.pe)}
    for launch in sorted(of_operations.union(every["launch"].tolist())):
        rows, others = every[every["launch"] == launch], spaces["shared", pe.pe, launch]
        ends = [int(rows["end"].max(initial=0)), *(access.end for access in others)]
        cell = int(rows["size"].min(initial=CELL))
        area = _Area(0, max(ends), cell, _of_a_block(rows, others))
        yield _Memory(history, area, rows, np.full(len(rows), pe.pe), others)


def _of_a_block(rows: Any, others: list[Access]) -> int:
    """Bytes of shared memory that blocks use, rounded up."""
    ends = (rows["low"] & OFFSET) + rows["end"] - rows["low"]
    most = max([int(ends.max(initial=0)), *((a.low & OFFSET) + a.end - a.low for a in others)])
    return -(-most // ALIGNED) * ALIGNED


class _Area:
    """A piece of memory in cells as small as its elements, if these are not too many.

    Of shared memory, a block has addresses of its own, of which it uses the first `width`.
    """

    def __init__(self, low: int, end: int, cell: int, width: int = 1 << BLOCK_BITS) -> None:
        self.low, self.end, self._width = low, end, width
        while (self._linear(end - 1) - self._linear(low)) // cell >= MOST_CELLS:
            cell *= 2
        self.cell = cell
        self.n = int(self.at(end - 1)) + 1

    def _linear(self, address: Any) -> Any:
        return (address >> BLOCK_BITS) * self._width + (address & OFFSET)

    def at(self, address: Any) -> Any:
        """The number of the cell that an address is in."""
        return (self._linear(address) - self._linear(self.low)) // self.cell

    def of(self, start: int, stride: int, count: int, size: int) -> Any:
        """The cells of a run, as an index."""
        reach = stride * (count - 1)
        if count == 1 or abs(stride) <= max(size, self.cell):
            low, end = start + min(reach, 0), start + max(reach, 0) + size
            low, end = max(low, self.low), min(end, self.end)
            return slice(int(self.at(low)), int(self.at(end - 1)) + 1)
        cells, real = self.of_each(start + stride * np.arange(count), size)
        return cells[real]

    def of_all(self, table: Any) -> tuple[Any, Any, Any]:
        """Of short runs the elements: which run each is of, and its cells, as `of_each`."""
        start, stride, count, size = table[:, :4].T
        runs = np.repeat(np.arange(len(table)), count)
        k = np.arange(len(runs)) - np.repeat(np.cumsum(count) - count, count)
        return runs, *self.of_each(start[runs] + stride[runs] * k, size[runs])

    def is_short(self, table: Any) -> Any:
        """Which runs have few cells."""
        return (table[:, 2] <= SHORT) & (table[:, 3] <= SHORT * self.cell)

    def of_each(self, starts: Any, size: Any) -> tuple[Any, Any]:
        """The cells of elements: a row for each, and which of them are cells of it, and here."""
        first, last = self.at(starts), self.at(starts + size - 1)
        cells = first[:, None] + np.arange(int((last - first).max(initial=0)) + 1)
        real = (cells <= last[:, None]) & (cells >= 0) & (cells < self.n)
        return np.where(real, cells, 0), real


# --- what reads, and what writes


class _Memory:
    """A piece of memory from its allocation to its end: what is read and written there."""

    def __init__(
        self,
        history: History,
        area: _Area,
        rows: Any,
        pes: Any,
        others: list[Access],
        array: dict[str, Any] | None = None,
        before: Any = None,
    ) -> None:
        self._history, self._area, self.array = history, area, array
        self._before = np.zeros(area.n, bool) if before is None else before
        self._rows, self._pes, self._others = rows, pes, others
        self.compared = 0  # with so many writes the last read was compared

    def reads(self) -> Iterator[Access]:
        """The runs and operations that may be the first here."""
        read = np.flatnonzero(self._rows["fetches"] & (self._rows["stamp"] <= self._filled))
        if len(read):
            yield from self._runs(read[self._late(self._rows[read])])
        firsts: dict[Any, Access] = {}
        for access in self._others:
            if _fetches(access):
                key = access.site, access.op, access.start
                firsts[key] = min(firsts.get(key, access), access, key=lambda a: a.stamp)
        yield from firsts.values()

    def _runs(self, late: Any) -> Iterator[Access]:
        """Some of these rows, of each line the first ones."""
        rows, pes = self._rows[late], self._pes[late]
        keys = [rows[name] for name in ("start", "clock", "thread", "launch")]
        order = np.lexsort([*keys, pes])
        left: dict[Any, int] = defaultdict(lambda: RUNS)
        for k in order.tolist():
            left[pes[k], rows["site"][k]] -= 1
            if left[pes[k], rows["site"][k]] >= 0:
                yield self._access(pes[k], rows[k])

    def _access(self, pe: Any, row: Any) -> Access:
        return self._history.access(int(pe), row)._replace(stamp=int(row["stamp"]))

    @cached_property
    def _writes(self) -> tuple[Any, Any, list[Access]]:
        """What writes: numbers of rows, and operations; and what these write, in the same order."""
        others = [a for a in self._others if a.writes]
        rows = np.flatnonzero(self._rows["how"] != LOAD)
        more = [(a.start, a.stride, a.times, a.size, a.stamp, a.low, a.end) for a in others]
        tables = _table(self._rows[rows]), np.array(more, np.int64).reshape(-1, 7)
        return np.concatenate(tables), rows, others

    @cached_property
    def _filled(self) -> int:
        """The stamp of the first run that writes all of it."""
        table, _, _ = self._writes
        _, stride, count, size, stamp, low, end = table.T
        whole = (low <= self._area.low) & (end >= self._area.end)
        whole &= (count == 1) | (abs(stride) <= size)
        return -1 if self._before.all() else int(stamp[whole].min(initial=NEVER))

    @property
    def written(self) -> Any:
        """Which cells have been written, here or before."""
        return self._before if self._before.all() else self._first[:-1] < NEVER

    @cached_property
    def _first(self) -> Any:
        """The stamp of the first write to each cell; none after the last."""
        area, first = self._area, np.full(self._area.n + 1, NEVER)
        table, _, _ = self._writes
        short = area.is_short(table)
        long = table[~short]
        for *run, stamp, _, _ in long[np.argsort(-long[:, 4])].tolist():
            first[area.of(*run)] = stamp
        runs, cells, real = area.of_all(table[short])
        stamps = np.broadcast_to(table[short][runs, 4:5], cells.shape)
        np.minimum.at(first, cells[real], stamps[real])
        first[:-1][self._before] = -1
        return first

    def _late(self, rows: Any) -> Any:
        """Which runs have cells that nothing has written before they begin."""
        area, late, table = self._area, np.zeros(len(rows), bool), _table(rows)
        thin = (table[:, 2] > 1) & (np.abs(table[:, 1]) > table[:, 3])
        short = area.is_short(table)
        for k in np.flatnonzero(thin & ~short).tolist():
            late[k] = np.any(self._first[area.of(*table[k, :4].tolist())] >= table[k, 4])
        some = np.flatnonzero(thin & short)
        runs, cells, real = area.of_all(table[some])
        unwritten = real & (self._first[cells] >= table[some][runs, 4:5])
        late[some[runs[unwritten.any(axis=1)]]] = True
        dense = np.flatnonzero(~thin)
        late[dense] = self._latest(table[dense]) >= table[dense, 4]
        return late

    def _latest(self, table: Any) -> Any:
        """When the last cell of each run without gaps is first written."""
        area, latest = self._area, np.zeros(len(table), np.int64)
        low = area.at(np.maximum(table[:, 5], area.low))
        end = area.at(np.minimum(table[:, 6], area.end) - 1) + 1
        order = np.argsort(low)
        if len(order):
            pairs = np.stack([low, end], axis=1)[order].ravel()
            latest[order] = np.maximum.reduceat(self._first, pairs)[::2]
        return latest

    # --- one read

    def unwritten(self, read: Access) -> Access | None:
        """The first element of a run, or an operation, that reads what is unwritten."""
        self.compared = 0
        elements = self._elements(read) if read.op is None else _items(read)
        return next((one for one in elements if self._is_first(read, one)), None)

    def _elements(self, run: Access) -> Iterator[Access]:
        """Those that may be: what nothing ever writes comes first."""
        starts = run.start + run.stride * np.arange(run.times if run.stride else 1)
        cells, real = self._area.of_each(starts, run.size)
        first = np.min(self._first[cells], axis=1, where=real, initial=NEVER)
        real = real.any(axis=1)
        never = np.flatnonzero(real & (first == NEVER))[:1]
        late = np.flatnonzero(real & (first >= run.stamp) & (first < NEVER))[:ELEMENTS]
        for k in (*never.tolist(), *late.tolist()):
            yield run._replace(
                start=run.start + k * run.stride, thread=run.thread + k * run.step, stride=0,
                times=1, step=0,
            )  # fmt: skip

    def _is_first(self, read: Access, one: Access) -> bool:
        """Whether an element is read before all that writes it."""
        low, end = one.low, one.end
        if self._before[self._area.of(one.start, 0, 1, one.size)].any():
            return False
        table, rows, others = self._writes
        near = np.flatnonzero((table[:, 5] < end) & (table[:, 6] > low))
        for k in near[np.argsort(table[near, 4])].tolist():
            start, stride, count, size = table[k, :4].tolist()
            starts = start + stride * np.arange(count)
            elements = np.flatnonzero((starts < end) & (starts + size > low))
            if not len(elements):
                continue
            self.compared += 1
            write = (
                self._access(self._pes[rows[k]], self._rows[rows[k]])
                if k < len(rows)
                else others[k - len(rows)]
            )
            threads = {write.thread + j * write.step for j in elements.tolist()}
            if not all(self._precedes(read, one, write, thread) for thread in threads):
                return False
        return True

    def _precedes(self, read: Access, one: Access, write: Access, thread: int) -> bool:
        """Whether a thread's part of a write comes after a read, or may come after it."""
        history = self._history
        if write.is_of_call_of(read) or (write.call is read.call and _is_same(read, write)):
            return True
        if _mine(one, write, thread) and one.when == write.when:
            return one.start == read.start and write.stamp >= read.stamp
        if history.over(one, one.thread, history.clock_of(write, thread), seen=False):
            return True
        if not (one.atomic and write.atomic):
            return False
        clock = history.clock_of(one, one.thread)
        known = history.over(write, thread, clock) or _is_called(write, clock)
        return not known and not history.excluded(one, one.thread, write, thread)


def _table(rows: Any) -> Any:
    """Of plain accesses what says where and when they are."""
    names = "start", "stride", "count", "size", "stamp", "low", "end"
    return np.stack([rows[name] for name in names], axis=1)


def _fetches(access: Access) -> bool:
    """Whether what an operation does depends on what is in memory, other than to copy it."""
    op, call = access.op, access.call
    if op is None or call is None:
        return False
    if not access.atomic:
        return not access.writes and op.base in COMPUTE
    if access.writes and op.plain not in WRITE_ONLY and not op.base.startswith("atomic_"):
        return call.compare == SIGNAL_ADD
    return op.plain not in WRITE_ONLY


def _items(access: Access) -> Iterator[Access]:
    """The elements that an operation looks at; of one that computes, all as one."""
    if not access.atomic:
        yield access._replace(start=access.low, size=access.end - access.low, stride=0, times=1)
        return
    assert access.call is not None
    status = access.call.contents[1]
    for k in range(access.times):
        if not status.get(k):
            yield access._replace(start=access.start + k * access.stride, stride=0, times=1)


def _is_same(read: Access, write: Access) -> bool:
    """Whether a run of atomic operations is compared with itself."""
    return read.writes and read.stamp == write.stamp


def _mine(one: Access, write: Access, thread: int) -> bool:
    """Whether one thread makes both, with plain loads and stores."""
    plain = one.op is None and write.op is None
    return plain and (one.pe, one.launch, one.thread) == (write.pe, write.launch, thread)


def _is_called(write: Access, clock: Clock) -> bool:
    """Whether a clock knows that the call of an operation has begun."""
    return isinstance(write.call, Call) and write.call.over(CALLED).known(clock)
