"""Calls of operations, and what the threads that make one together learn of each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import copy
from itertools import product
from typing import Any, NamedTuple

from gpushmem.artifacts.gpu_model import LANES
from gpushmem.check.conditions import Write
from gpushmem.check.launches import Launch
from gpushmem.check.log import NO_INTEGER, PHASE, Record
from gpushmem.check.vector_clock import CALLED, DONE, READ, UNITS, Bit, Clock, is_fenced
from gpushmem.ops import OPS, QP_DEFAULT
from gpushmem.ops.roles import QueuePair, QueuePairs
from gpushmem.ops.row import DATA, READS, WORDS, Effect, Op

__all__ = [
    "ROWS",
    "Call",
    "Change",
    "Extent",
    "extent",
    "gather",
    "known_to_all",
    "spread",
    "threads_of",
]

ROWS = list(OPS.values())
UP_TO_NOW = 1 << 31  # more events than a thread has between two barriers


class Extent(NamedTuple):
    """What an effect of a call covers: `times` pieces of `size` bytes, `stride` bytes apart."""

    effect: Effect
    address: int
    item: int  # bytes of an element
    size: int
    stride: int
    times: int


def extent(op: Op, words: list[int]) -> Extent:
    """From the words of a record EFFECT."""
    number, address, nbytes, stride, item, pitch = words
    effect, rows = op.facts.effects[number & 0xFF], number >> 8
    if not nbytes:
        return Extent(effect, address, item, 0, 0, 0)
    if rows:  # a matrix: its rows or its columns are without gaps
        columns = nbytes // item
        if columns > 1 and stride != item:
            rows, pitch, columns = columns, stride, rows
        return Extent(effect, address, item, columns * item, pitch, rows)
    if stride == item:
        return Extent(effect, address, item, nbytes, 0, 1)
    return Extent(effect, address, item, item, stride, max(1, -(-nbytes // max(stride, 1))))


class Change(NamedTuple):
    """How a call updates a word; see `Write`, which has it."""

    over: Bit
    how: str
    value: int | None


class Call:
    """A call of an operation, as it is replayed."""

    def __init__(self, pe: int, op: Op, record: Record, site: str) -> None:
        self.by, self.op, self.record, self.site = pe, op, record, site
        words = record.words
        self.stamp = record.stamp
        self.expected, self.scope = words[1] >> 8, words[1] & NO_INTEGER - 1  # effects to come
        self.pe, self.team, self.compare, value = words[2:]
        self.value: Any = None if words[1] & NO_INTEGER else value
        # The queue pair that it uses; the set of those that it orders, if it does not order all.
        self.qp = self.team if op.named(QueuePair) else QP_DEFAULT
        self.qps: int | None = self.value if op.named(QueuePairs) else None
        self.effects: list[Extent] = []
        self.word: Any = None  # what it updates, or looks at
        self.update: Change | None = None
        self.swap: Write | None = None  # a compare_swap's, until it is known to change the word
        # The words: memory, start, bytes of one, how many, whether they are written.
        self.words: list[tuple[Any, int, int, int, bool]] = []
        self.known: Any = None  # the clock with which it began, if it takes a turn
        self.contents: list[dict[int, int]] = [{}, {}, {}]  # values, status, indices of a wait
        # Its number among those of its PE for the same target; a signal has the next. How many.
        self.bit, self.parts = 0, 0
        # What it is to the checker: itself, or a call for each PE that it stores to.
        self.each: list[Call] = [self]

    def divide(self, pes: Iterable[int]) -> None:
        """Let it be a call for each of these PEs."""
        self.each = []
        for pe in pes:
            self.each.append(one := copy(self))
            one.pe, one.words = pe, []

    @property
    def units(self) -> Extent | None:
        """The units that it puts, or waits for."""
        return next((one for one in self.effects if one.effect.kind in WORDS), None)

    @property
    def fetches(self) -> bool:
        """Whether it only reads memory of another PE."""
        effects = self.op.facts.effects
        remote = [e for e in effects if self.pe >= 0 and self.op.arrays[e.array].symmetric]
        return bool(remote) and all(e.how == READS and e.kind == DATA for e in remote)

    def place(self) -> tuple[Any, ...]:
        """Its line, PE, launch, thread and the thread's clock: of each call another one."""
        return self.site, self.by, *self.record[2:5]

    def who(self) -> tuple[int, int, int]:
        """The PE, launch and thread that make it."""
        return self.by, self.record.launch, self.record.thread

    def over(self, kind: int, part: int = 0) -> Bit:
        """What a clock has that knows this of the call; `part`: 1 for its signal."""
        return Bit(kind, self.by, self.pe, self.bit + part)

    def mark(self, clock: Clock, kind: int, part: int = 0) -> None:
        """Let a clock know this of the call."""
        clock.put((kind, self.by, self.pe), self.bit + part)


def threads_of(launch: Launch, call: Call, thread: int) -> tuple[int, int]:
    """The threads that make a call together: from, to."""
    if call.scope == 0:
        return thread, thread + 1
    block = thread - thread % launch.threads
    if call.scope == 2:
        return block, block + launch.threads
    first = block + thread % launch.threads // LANES * LANES
    return first, min(first + LANES, block + launch.threads)


def gather(launch: Launch, call: Call, clock: Clock) -> None:
    """Let who acts for a group know what the others know: all, or of which calls to flush."""
    thread, when = call.record.thread, call.record.clock
    first, last = threads_of(launch, call, thread)
    own = launch.block_of(thread).own
    if call.op.facts.meets and call.scope == 2:  # all that was done before this meeting
        key = launch.pe, launch.number, "block", thread // launch.threads
        clock.times[key] = (when >> PHASE) + 1
    for other in range(first, last):
        if call.op.facts.meets:
            if other in own:
                clock.join(own[other])
            if call.scope == 1 and other != thread:  # up to its call, whatever its clock
                clock.times[launch.pe, launch.number, other] = when >> PHASE << PHASE | UP_TO_NOW
        elif call.op.facts.orders and other in own:
            for key, mask in own[other].masks.items():
                if key[0] == CALLED:
                    clock.know(key, mask)


def known_to_all(launch: Launch, call: Call, clock: Clock) -> Clock:
    """What every thread of a group knows when it calls: what one alone did is not included."""
    thread = call.record.thread
    first, last = threads_of(launch, call, thread)
    block = launch.block_of(thread)
    base = block.clocks[-1]
    others = [block.own.get(t, base) for t in range(first, last) if t != thread]
    least = clock.copy()
    for other in {id(other): other for other in others}.values():
        least.meet(other)
    return least


def spread(launch: Launch, call: Call, record: Record, clock: Clock) -> None:
    """What the thread that acts for a group now knows of the call, all of the group know."""
    thread, when = record.thread, record.clock
    stamp = record.stamp
    launch.keep(thread, when, stamp)
    if call.scope == 0:
        return
    phase = (when >> PHASE) + 1
    news = _news(call, clock)
    if call.scope == 2:
        _meet(launch, call, thread, phase, news, stamp)
        return
    for other in range(*threads_of(launch, call, thread)):
        if other != thread:
            launch.clock(other).join(news)


def _news(call: Call, clock: Clock) -> Clock:
    """What the others of a group learn from who acts for them, who has this clock."""
    if call.op.facts.meets:
        return clock.copy()
    news = Clock()
    for one, kind in product(call.each, (CALLED, READ, DONE, UNITS)):
        key = kind, one.by, one.pe
        for bit in range(one.bit, one.bit + one.parts):
            if clock.has(*key, bit):
                news.put(key, bit)
    learned = LEARNED.get("units" if call.op.waits else call.op.facts.orders)
    for key, mask in clock.masks.items():
        if learned is not None and learned(key[0]):
            news.know(key, mask)
    return news


# Of calls that order, or wait for units: the masks that a group learns from who acts for it.
LEARNED: dict[str, Callable[[Any], bool]] = {
    "flush": lambda kind: kind == READ,
    "quiet": lambda kind: kind in (READ, DONE),
    "fence": is_fenced,
    "units": lambda kind: kind == UNITS,
}


def _meet(launch: Launch, call: Call, thread: int, phase: int, news: Clock, stamp: int) -> None:
    """A block goes on after a call, its threads knowing this more."""
    block = launch.block_of(thread)
    known = block.clocks[-1].copy()
    known.join(news)
    if call.op.facts.meets and phase not in block.barriers[-1:]:
        block.barriers.append(phase)
    if block.phases[-1] == phase:
        block.clocks[-1] = known
    else:
        block.met(phase, known, stamp)
    for other, own in block.own.items():
        if other != thread:
            own.join(news)
        launch.keep(other, phase << PHASE, stamp)
