"""Accesses to the same bytes that nothing orders, at least one of them a write.

Operations on a memory are compared as they come, in an order that agrees with what is known of
theirs. One is dropped when a later one covers it that comes after it: whatever conflicts with the
first from then on, and does not come after the second, conflicts with the second, too. A read does
not cover a write in this sense. Plain loads and stores, of which there are many more, are compared
with each other within a launch, and between launches that nothing orders.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache, partial
from itertools import chain, pairwise
from typing import Any, NamedTuple

import numpy as np

from gpushmem.check.accesses import SHARED_MEMORY, Access, as_one
from gpushmem.check.calls import threads_of
from gpushmem.check.history import History, Observer
from gpushmem.check.launches import Launch
from gpushmem.check.log import PHASE
from gpushmem.check.vector_clock import CALLED, ENDED, NONE, Bits, Clock
from gpushmem.simt.observe import ATOMIC, LOAD, STORE

__all__ = ["Operations", "Race", "races"]


MOST_REPEATED, FEW = 8, 8
MANY = 1024  # races before those of the same lines are made one


class Race(NamedTuple):
    """Two accesses that may happen in any order, or at once; and how often there are such."""

    first: Access
    second: Access
    element: tuple[int, int]  # which elements of the two, of one pair
    seen: int


class Operations(Observer):
    """The races of operations, and of what hosts do, with each other: `found` as they come."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Forget what has been seen."""
        self._memories: dict[Any, _Kinds] = defaultdict(_Kinds)
        self.found: list[Race] = []

    def see(self, history: History, access: Access) -> None:
        """One more access, which none of those that were seen comes after."""
        for one in _with_earlier(history, self._memories[access.space], access):
            self.found.append(Race(*one, seen=1))
            if len(self.found) >= MANY:
                self.found = _as_one(history, self.found)


def races(history: History, operations: Operations) -> list[Race]:
    """All races, those of the same two lines and kinds of access as one.

    In an order, and each with an example, that do not depend on the order in which they are found.
    """
    every = (Race(*one, seen=1) for one in _of_plain(history))
    return _as_one(history, chain(operations.found, every))


def _as_one(history: History, every: Iterable[Race]) -> list[Race]:
    return as_one(
        every, lambda race: tuple(sorted(_kind(a) for a in race[:2])), partial(_place, history)
    )


def _place(history: History, race: Race) -> tuple[Any, ...]:
    """Where a race is: those that only an order mends first, then those of two PEs.

    Others begin in order: that one is over before the other one would mend them.
    """
    in_order = any(
        one.call is not None
        and one.call.over(CALLED).known(history.clock_of(other, other.thread + k * other.step))
        for one, other, k in ((*race[:2], race.element[1]), (*race[1::-1], race.element[0]))
    )
    places = sorted(
        (a.pe, a.launch, *_who_and_when(history, a, k), a.start + k * a.stride)
        for a, k in zip(race[:2], race.element, strict=True)
    )
    return in_order, race.first.pe == race.second.pe, places


def _who_and_when(history: History, access: Access, element: int) -> tuple[int, int]:
    """The thread, and its clock; of a call of a block its first one, not the one that came last."""
    call, thread = access.call, access.thread + element * access.step
    if call is None or call.scope == 0 or not access.launch:
        return thread, access.when
    launch = history.pes[access.pe].launches[access.launch]
    return threads_of(launch, call, thread)[0], access.when >> PHASE << PHASE


Found = Iterator[tuple[Access, Access, tuple[int, int]]]


def _of_plain(history: History) -> Found:
    """Those of plain loads and stores."""
    spaces = defaultdict(list)
    for access in history.accesses:
        spaces[access.space].append(access)
    plain = {pe: facts.plain for pe, facts in history.pes.items()}
    for pe, rows in plain.items():
        yield from _of_kernels(history, pe, rows)
        yield from _with_operations(history, pe, rows, spaces)
    yield from _of_several_pes(history, plain)


# --- plain loads and stores


def _of_kernels(history: History, pe: int, plain: Any) -> Found:
    """Those of kernels of one PE with each other: of one launch, and of launches in no order."""
    launches = history.pes[pe].launches
    parts = dict(_split(plain, plain["launch"]))
    every = sum(1 << number for number in parts)
    for number, part in parts.items():
        yield from _of_launch(history, pe, part)
        ended = launches[number].begun.masks.get((ENDED, pe, 0), NONE)
        for other in (Bits(0, every & ((1 << number) - 1))).without(ended):
            if not launches[other].begun.has(ENDED, pe, 0, number):
                yield from _between(history, pe, parts[other], part)


def _split(rows: Any, *keys: Any) -> Iterator[tuple[Any, Any]]:
    """The rows with equal keys together, each with the last key."""
    keys = tuple(np.ascontiguousarray(key) for key in keys)
    if len(keys) > 1 or (keys[0][1:] < keys[0][:-1]).any():
        order = np.lexsort(keys[::-1])
        rows, keys = rows[order], tuple(key[order] for key in keys)
    new = np.arange(len(rows)) == 0
    for key in keys:
        new[1:] |= key[1:] != key[:-1]
    starts = np.flatnonzero(new).tolist()
    for start, end in pairwise([*starts, len(rows)]):
        yield int(keys[-1][start]), rows[start:end]


def _of_launch(history: History, pe: int, part: Any) -> Found:
    """Those of one launch: in one block between two barriers, and of several blocks."""
    launch = history.pes[pe].launches[int(part["launch"][0])]
    threads = launch.threads
    first = part["thread"] // threads
    last = (part["thread"] + part["step"] * (part["count"] - 1)) // threads
    alone = part[(part["step"] != 0) & (part["count"] > 1) & (part["how"] == STORE)]
    for row in alone[np.abs(alone["stride"]) < alone["size"]]:
        access = history.access(pe, row)
        element = _unordered(history, access, access)
        if element is not None:
            yield access, access, element
    inside, several = part[first == last], part[first != last]
    blocks = first[first == last]
    for _, group in _split(inside, inside["space"], blocks, _barriers(launch, blocks, inside)):
        one_thread = group["thread"][0]
        if ((group["thread"] != one_thread) | (group["step"] != 0)).any():
            yield from _between(history, pe, group, group)
    if len(several) or (blocks != blocks[0]).any():
        shared = part[_seen_by_several(part, first, last)]
        spaces = defaultdict(list)
        for row in shared:
            access = _stamped(history, pe, row)
            spaces[access.space].append(access)
        for there in spaces.values():
            yield from _in_one_memory(history, there)


def _stamped(history: History, pe: int, row: Any) -> Access:
    """A plain access with its place in the order of events."""
    access = history.access(pe, row)
    return access._replace(stamp=history.stamp_of(access, access.thread))


def _barriers(launch: Launch, blocks: Any, rows: Any) -> Any:
    """How many barriers of its block there were before each access."""
    made = np.zeros(len(rows), np.int64)
    for number, block in launch.blocks.items():
        here = blocks == number
        made[here] = np.searchsorted(block.barriers, rows["clock"][here] >> PHASE, "right")
    return made


CELL = 64  # bytes
ROWS = 1 << 14  # at once
OF_SPACE = 44  # bits of the number of a cell in its memory


def _seen_by_several(part: Any, first: Any, last: Any) -> Any:
    """Which rows are near memory that several blocks access, and one of them writes."""
    near = part["space"] != SHARED_MEMORY
    of_space = (part["space"] - part["space"].min()) << OF_SPACE
    base = (part["low"] // CELL).min()
    touched = [np.unique(of_space[rows] + at) for rows, at in _cells(part, base, near)]
    cells = np.unique(np.concatenate([np.zeros(0, np.int64), *touched]))
    low = np.searchsorted(cells, of_space + part["low"] // CELL - base)
    end = np.searchsorted(cells, of_space + (part["end"] - 1) // CELL - base, "right")
    written = np.zeros(len(cells), bool)
    for rows, at in _cells(part, base, near & (part["how"] != LOAD)):
        written[np.searchsorted(cells, of_space[rows] + at)] = True
    near &= _any_between(written, low, end)
    lowest, highest = np.full(len(cells), np.iinfo(np.int64).max), np.full(len(cells), -1)
    for rows, at in _cells(part, base, near):
        there = np.searchsorted(cells, of_space[rows] + at)
        np.minimum.at(lowest, there, first[rows])
        np.maximum.at(highest, there, last[rows])
    return near & _any_between(written & (lowest < highest), low, end)


def _cells(part: Any, base: int, chosen: Any) -> Iterator[tuple[Any, Any]]:
    """The cells of the chosen rows, numbered from `base`: some rows, and a cell of each."""
    rows = np.flatnonzero(chosen)
    low, end = part["low"][rows] // CELL, (part["end"][rows] - 1) // CELL
    dense = np.abs(part["stride"][rows]) <= CELL
    several = np.where(dense, end - low + 1, part["count"][rows])
    for first in range(0, len(rows), ROWS):
        here = slice(first, first + ROWS)
        n = several[here]
        at = np.repeat(np.arange(len(n)), n)
        k = np.arange(len(at)) - np.repeat(np.cumsum(n) - n, n)
        which, thin = rows[here][at], ~dense[here][at]
        place = part["start"][which] + k * part["stride"][which]
        cell = np.where(thin, place // CELL, low[here][at] + k)
        yield which, cell - base
        last = (place + part["size"][which] - 1) // CELL
        two = thin & (last != cell)
        yield which[two], last[two] - base


def _any_between(cells: Any, low: Any, end: Any) -> Any:
    """Of each row, whether any of its cells is True."""
    before = np.cumsum(np.pad(cells, (1, 0)))
    return before[end] > before[low]


def _between(history: History, pe: int, first: Any, second: Any) -> Found:
    """Pairs of two sets of accesses, or of one set."""
    same = first is second
    for space in np.unique(first["space"]).tolist():
        if space == SHARED_MEMORY and not same:
            continue
        a, b = (part[part["space"] == space] for part in (first, second))
        sets = [(a, b, same)] if same else [(a, b, False), (b, a[a["how"] == LOAD], False)]
        for writers, others, one_set in sets:
            yield from _pairs(history, pe, writers, others, one_set)


def _pairs(history: History, pe: int, a: Any, others: Any, same: bool) -> Found:
    """Pairs of what writes in one set and anything in the other."""
    b = others[np.argsort(others["low"], kind="stable")]
    places = np.flatnonzero((b if same else a)["how"] != LOAD)
    writers = (b if same else a)[places]
    if not len(writers) or not len(b):
        return
    longest = int((b["end"] - b["low"]).max())
    low = np.searchsorted(b["low"], writers["low"] - longest, "left")
    high = np.searchsorted(b["low"], writers["end"], "left")
    for i in np.flatnonzero(high > low).tolist():
        one = writers[i]
        part = b[low[i] : high[i]]
        size = one["size"] if one["how"] == ATOMIC else 0
        meets = _conflicting(part, one["low"], True, size, one["start"])
        meets &= ~_interleaved(
            part["start"], part["stride"], part["size"], one["start"], one["stride"], one["size"]
        )
        if one["step"] == 0 and same:
            meets &= (part["thread"] != one["thread"]) | (part["step"] != 0)
        if same:  # each pair of writes once
            meets &= (part["how"] == LOAD) | (np.arange(low[i], high[i]) > places[i])
        if one["step"] == 1 and same:  # runs of the same threads at the same addresses
            meets &= ~(
                (part["start"] - one["start"] == one["stride"] * (part["thread"] - one["thread"]))
                & (part["stride"] == one["stride"]) & (part["step"] == 1)
                & (abs(one["stride"]) >= np.maximum(part["size"], one["size"]))
            )  # fmt: skip
        for row in part[meets]:
            accesses = history.access(pe, one), history.access(pe, row)
            element = _unordered(history, *accesses)
            if element is not None:
                yield *accesses, element


def _interleaved(starts: Any, strides: Any, sizes: Any, start: int, stride: int, size: int) -> Any:
    """Which runs have their elements between those of another one; of one element: stride 0."""
    step = np.maximum(np.abs(strides), abs(stride))
    gap = (starts - start) % np.maximum(step, 1)
    alike = (strides == 0) | (stride == 0) | (np.abs(strides) == abs(stride))
    return alike & (step > 0) & (gap >= size) & (step - gap >= sizes)


def _conflicting(rows: Any, low: int, writes: bool, size: int, start: int) -> Any:
    """Which accesses, of those that begin before another one ends, overlap and conflict with it.

    `size`: of the word at `start`, if it is atomic; else 0.
    """
    meets = rows["end"] > low
    if not writes:
        meets &= rows["how"] != LOAD
    if size:
        other_word = (rows["size"] != size) | ((rows["start"] - start) % size != 0)
        meets &= (rows["how"] != ATOMIC) | other_word
    return meets


def _with_operations(history: History, pe: int, plain: Any, spaces: Any) -> Found:
    """Those of a PE's kernels with operations, and with what hosts do."""
    for number, owner, rows in _memories(plain):
        there = _Launches(history, pe, rows)
        for access in spaces.get(history.pes[pe].space(number, owner), ()):
            clock = history.clock_of(access, access.thread)
            for launch, accesses in there.not_ordered(access, clock):
                for row in _not_ordered(history, access, clock, launch, accesses):
                    other = history.access(pe, row)
                    element = _unordered(history, access, other)
                    if element is not None:
                        yield access, other, element


class _Launches:
    """The plain accesses of a PE's launches to one memory."""

    def __init__(self, history: History, pe: int, rows: Any) -> None:
        self._history, self._pe = history, pe
        self._parts = [
            (history.pes[pe].launches[number], part[np.argsort(part["low"], kind="stable")])
            for number, part in _split(rows, rows["launch"])
        ]
        self._longest = [int((part["end"] - part["low"]).max()) for _, part in self._parts]
        self._numbers = [launch.number for launch, _ in self._parts]
        # What is known at the beginning of a launch and of all after it.
        self._begun = [launch.begun.copy() for launch, _ in self._parts]
        for clock, later in pairwise(self._begun[::-1]):
            later.meet(clock)

    def not_ordered(self, access: Access, clock: Clock) -> Iterator[tuple[Launch, Any]]:
        """Of each launch that nothing orders with an access, the accesses that conflict."""
        history, thread = self._history, access.thread
        ended = clock.masks.get((ENDED, self._pe, 0), NONE)
        first = bisect.bisect_left(self._numbers, ended.base)
        end = bisect.bisect_left(
            self._begun, True, key=lambda begun: history.over(access, thread, begun)
        )
        for k in range(first, end):
            launch, rows = self._parts[k]
            if not ended.has(launch.number) and not history.over(access, thread, launch.begun):
                low = np.searchsorted(rows["low"], access.low - self._longest[k], "left")
                part = rows[low : np.searchsorted(rows["low"], access.end, "left")]
                size = access.size if access.atomic and access.pe == self._pe else 0
                meets = _conflicting(part, access.low, access.writes, size, access.start)
                yield launch, part[meets]


def _memories(plain: Any) -> Iterator[tuple[int, int, Any]]:
    """Number of each memory, of shared memory its launch, and the accesses there."""
    for number, rows in _split(plain, plain["space"]):
        if number == SHARED_MEMORY:
            yield from ((number, launch, part) for launch, part in _split(rows, rows["launch"]))
        else:
            yield number, 0, rows


def _not_ordered(
    history: History, access: Access, clock: Clock, launch: Launch, rows: Any
) -> Iterator[Any]:
    """The accesses of a launch without those of which it is soon seen that another is in order."""
    for number, part in _split(rows, rows["thread"] // launch.threads):
        phases = part["clock"] >> PHASE
        before = clock.times.get((launch.pe, launch.number, "block", number), -1)
        left = phases >= before
        last = part["thread"] + part["step"] * (part["count"] - 1)
        left |= last // launch.threads != number
        if number in launch.blocks:
            block = launch.blocks[number]
            first = bisect.bisect_left(
                block.clocks, True, key=lambda c: history.over(access, access.thread, c)
            )
            if first < len(block.phases):
                left &= phases < block.phases[first]
        for thread in np.unique(part["thread"][left]).tolist():
            left &= ~_in_order_with_thread(history, access, clock, launch, part, thread)
        yield from part[left]


def _in_order_with_thread(
    history: History, access: Access, clock: Clock, launch: Launch, rows: Any, thread: int
) -> Any:
    """Which rows one thread alone made before what a clock knows, or when it knew of an access."""
    alone = (rows["thread"] == thread) & ((rows["step"] == 0) | (rows["count"] == 1))
    load = rows["how"] == LOAD
    away = ~load & (rows["space"] >= 0) & (rows["space"] != launch.pe)
    known, loaded = (launch.known_time(thread, clock, seen) for seen in (True, False))
    before = (rows["clock"] < np.where(load, loaded, known)) & ~away
    times, clocks, _ = launch.past.get(thread, ([], [], []))
    first = bisect.bisect_left(clocks, True, key=lambda c: history.over(access, access.thread, c))
    if first < len(times):
        before |= rows["clock"] >= times[first]
    return alone & before


def _of_several_pes(history: History, plain: dict[int, Any]) -> Found:
    """Plain loads and stores of several PEs to one heap."""
    for owner in history.pes:
        there = {pe: rows[rows["space"] == owner] for pe, rows in plain.items()}
        there = {pe: rows for pe, rows in there.items() if len(rows)}
        if len(there) < 2:
            continue
        rows = np.concatenate(list(there.values()))
        pes = np.repeat(list(there), [len(part) for part in there.values()])
        chosen = _seen_by_several(rows, pes, pes)
        pairs = zip(pes[chosen].tolist(), rows[chosen], strict=True)
        accesses = [_stamped(history, pe, row) for pe, row in pairs]
        for first, second, element in _in_one_memory(history, accesses):
            if first.pe != second.pe:
                yield first, second, element


# --- operations


def _kind(access: Access) -> tuple[str, str, bool]:
    return access.site, access.op.name if access.op else "", access.writes


class _Live:
    """The accesses that later ones are compared with."""

    def __init__(self) -> None:
        self.all: list[Access | None] = []
        self._index: dict[int, int] = {}  # by the id of an access: its place in `all`
        self._places = np.zeros((64, 5), np.int64)  # first byte, end, start, stride, size

    def add(self, access: Access) -> None:
        if len(self.all) == len(self._places):
            self._compact()
        stride = access.stride if access.times > 1 else 0
        place = access.low, access.end, access.start, stride, access.size
        self._places[len(self.all)] = place
        self._index[id(access)] = len(self.all)
        self.all.append(access)

    def discard(self, access: Access) -> None:
        """Drop one, if it is there."""
        index = self._index.get(id(access))
        if index is not None:
            self.drop(index)

    def overlapping(self, access: Access) -> list[int]:
        """Those that touch the same bytes, and some that may not."""
        begin, past = access.low, access.end
        if len(self.all) <= FEW:
            near = np.array([
                k for k, one in enumerate(self.all)
                if one is not None and one.low < past and one.end > begin
            ], np.int64)  # fmt: skip
        else:
            low, end = self._places[: len(self.all), :2].T
            near = np.flatnonzero((low < past) & (end > begin))
        start, stride, size = self._places[near, 2:].T
        own = access.stride if access.times > 1 else 0
        if len(near) and (own or stride.any()):
            near = near[~_interleaved(start, stride, size, access.start, own, access.size)]
        found: list[int] = near.tolist()
        return found

    def drop(self, index: int) -> None:
        self._index.pop(id(self.all[index]), None)
        self.all[index] = None
        self._places[index] = 0

    def _compact(self) -> None:
        kept = [k for k, access in enumerate(self.all) if access is not None]
        self.all = [self.all[k] for k in kept]
        self._index = {id(access): k for k, access in enumerate(self.all)}
        fresh = np.zeros((max(64, 2 * len(kept)), 5), np.int64)
        fresh[: len(kept)] = self._places[kept]
        self._places = fresh


class _Kinds:
    """The accesses that later ones are compared with, by their kind: most kinds do not conflict."""

    def __init__(self) -> None:
        self._live: dict[Any, tuple[Access, _Live]] = {}  # of each kind one of them, and all
        self._conflicts: dict[Any, list[_Live]] = {}
        self._repeated: dict[Any, list[Access]] = defaultdict(list)  # atomic ones of a line

    def conflicting(self, access: Access) -> list[_Live]:
        """Those of the kinds that conflict with an access."""
        kind = access.kind
        if kind not in self._conflicts:
            self._conflicts[kind] = [
                live for one, live in self._live.values() if access.conflicts(one)
            ]
        return self._conflicts[kind]

    def add(self, history: History, access: Access) -> None:
        """Add one; an atomic access takes the place of those that its thread made at its line.

        Of those that are not over the first and the last ones are enough: who knows them to be over
        knows it by a fence after the last one, or by a value that all have led to.
        """
        kind = access.kind
        if kind not in self._live:
            self._live[kind], self._conflicts = (access, _Live()), {}
        live = self._live[kind][1]
        if access.atomic:
            name = kind, access.launch, access.thread, access.start, access.times, access.site
            mine = self._repeated[name]
            if mine and history.all_over(mine[-1], history.least_clock_of(access)):
                live.discard(mine.pop())
            if len(mine) == MOST_REPEATED:
                live.discard(mine.pop(MOST_REPEATED // 2))
            mine.append(access)
        live.add(access)


def _in_one_memory(history: History, accesses: list[Access]) -> Found:
    """The races of accesses to one memory."""
    kinds = _Kinds()
    for access in sorted(accesses, key=lambda access: access.stamp):
        yield from _with_earlier(history, kinds, access)


def _with_earlier(history: History, kinds: _Kinds, access: Access) -> Found:
    """The races of an access with those before it, of which it is one from now on."""
    if access.writes and access.step and access.times > 1:
        element = _unordered(history, access, access)
        if element is not None:
            yield access, access, element
    least = None
    for live in kinds.conflicting(access):
        for k in live.overlapping(access):
            other = live.all[k]
            assert other is not None
            if least is None:
                least = history.least_clock_of(access)
            if _in_program_order(other, access) or history.all_over(other, least):
                if access.writes and _covers(access, other):
                    live.drop(k)
            else:
                element = _unordered(history, other, access)
                if element is not None:
                    yield other, access, element
    kinds.add(history, access)


def _in_program_order(first: Access, second: Access) -> bool:
    """Whether one thread makes two plain accesses, one after the other."""
    threads = [(access.op, access.pe, access.launch, access.thread) for access in (first, second)]
    return (
        threads[0] == threads[1] and first.op is None and first.when <= second.when
        and _alone(first) and _alone(second)
    )  # fmt: skip


def _covers(access: Access, other: Access) -> bool:
    """Whether an access touches all bytes that another does, and conflicts with as much."""
    if access.atomic and other.atomic and access.change != other.change:
        return False
    same = access.stride == other.stride and access.start == other.start
    if same and access.size == other.size and access.times >= other.times:
        return access.atomic <= other.atomic
    dense = access.times == 1 or abs(access.stride) <= access.size
    return (
        dense
        and access.low <= other.low
        and other.end <= access.end
        and access.atomic <= other.atomic
    )


def _unordered(history: History, first: Access, second: Access) -> tuple[int, int] | None:
    """Elements of two accesses that are the same memory, and in no order; None if there are none.

    The accesses of one thread are in order, but for operations that go on after their call.
    """
    if first.is_of_call_of(second):
        return None
    if not first.conflicts(second):
        return None
    plain = first.op is None and second.op is None
    same = (first.pe, first.launch) == (second.pe, second.launch) and (plain or first is second)

    @cache
    def ordered(one: int, two: int) -> bool:
        return (
            (same and one == two)
            or history.over(first, one, history.clock_of(second, two), seen=not second.writes)
            or history.over(second, two, history.clock_of(first, one), seen=not first.writes)
            or history.excluded(first, one, second, two)
        )

    if same and _are_of_same_threads(first, second):
        return None
    if _alone(first) and _alone(second) and ordered(first.thread, second.thread):
        return None
    for i, j in _overlaps(first, second):
        if not ordered(first.thread + i * first.step, second.thread + j * second.step):
            return i, j
    return None


def _are_of_same_threads(first: Access, second: Access) -> bool:
    """Whether what one thread accesses in one run, no other one accesses in the other run."""
    return (
        first.step == second.step == 1
        and first.stride == second.stride
        and abs(first.stride) >= max(first.size, second.size)
        and second.start - first.start == first.stride * (second.thread - first.thread)
    )


def _alone(access: Access) -> bool:
    """Whether one thread makes it."""
    return access.step == 0 or access.times == 1


def _overlaps(first: Access, second: Access) -> Iterator[tuple[int, int]]:
    """Elements of two runs that overlap."""
    if first.times == 1 and second.times == 1:
        if first.start < second.end and second.start < first.end:
            yield 0, 0
        return
    a = first.start + first.stride * np.arange(first.times)
    b = second.start + second.stride * np.arange(second.times)
    order = np.argsort(b, kind="stable")
    b = b[order]
    low = np.searchsorted(b, a - second.size, "right")
    high = np.searchsorted(b, a + first.size, "left")
    seen = set()
    for i in np.flatnonzero(high > low).tolist():
        for k in range(low[i], min(high[i], low[i] + 64)):
            j = int(order[k])
            pair = (i if first.step else 0, j if second.step else 0)
            if pair not in seen:
                seen.add(pair)
                yield i, j
