"""What happens before what: from the logs of all PEs to memory accesses with clocks.

The order is what the program's synchronisation makes, in every run that makes the same calls; not
what this run happened to do. What somebody knows to be over is a `Clock`. Program order, barriers,
launches and meetings are read off the logs. What a wait orders is derived: of the writes to the
word that it waits for, those without which its condition could not have held, whatever the schedule
(`words`). That depends on the order of the writes, so the logs are gone through again until no wait
orders anything new. The order only ever grows, and each part of it holds in every run; so what is
found unordered at the end may happen in any order.

Source: happens-before as in Lamport, "Time, clocks, and the ordering of events in a distributed
system", 1978; complete and incomplete operations as in OpenSHMEM 1.5, sections 3.2 and 9.11.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gpushmem.check import log
from gpushmem.check.clock import CALLED, DONE, ENDED, FENCED, READ, UPDATED, Bit, Clock
from gpushmem.check.conditions import CHANGES, Write
from gpushmem.check.log import CALL_OF_WARP, PHASE, SHARED, Trace
from gpushmem.check.words import Word
from gpushmem.ops import CMP_EQ, OPS, SIGNAL_ADD
from gpushmem.ops.row import DATA, READS, RETURN, SIGNAL, UPDATES, Effect, Op
from gpushmem.simt.base.gpu_model import LANES
from gpushmem.simt.compiler.observer import (
    ADD,
    AND,
    ATOMIC,
    CAS,
    LOAD,
    OR,
    OTHER,
    SET,
    STORE,
    VALUED,
    XOR,
)

__all__ = [
    "SHARED_MEMORY", "Access", "Call", "History", "Launch", "Update", "history",
]  # fmt: skip

ROWS = list(OPS.values())
PASSES = 64
UP_TO_NOW = 1 << 31  # more events than a thread has between two barriers
# What ends a key of `Clock.times`: of what was stored to other PEs' memory; of loads, and of stores
# that another PE need not see, but may overwrite.
OUT, LOADS = "out", "loads"


# A plain load or store, or a run of them. `space`: the PE whose heap it is in, or LOCAL, for memory
# that is not symmetric, or SHARED_MEMORY, of the launch.
PLAIN = np.dtype(
    [
        (name, "i8")
        for name in (
            "launch", "thread", "clock", "site", "space", "start", "stride", "count", "step",
            "size", "how", "low", "end", "value", "valued",
        )
    ]
)  # fmt: skip
LOCAL, SHARED_MEMORY = -1, -2
SYSTEM = 2  # scope of a fence
HOW = {ADD: "add", OR: "or", AND: "and", XOR: "xor"}  # others set the word
INTEGER, TRUTH = 0, 1  # what a result is


class Access(NamedTuple):
    """One access to memory, or a run of equal ones by consecutive threads."""

    space: Any  # the memory: a PE's heap, ...
    start: int  # in it
    size: int  # bytes of one element
    stride: int  # bytes from one to the next
    times: int
    writes: bool
    atomic: bool  # does not conflict with others that are
    pe: int  # whose
    launch: int  # 0: the host's
    thread: int
    step: int  # threads from one element to the next
    when: int  # the thread's clock
    site: str
    op: Op | None  # None: a plain load or store
    call: Call | None
    over: Bit | None  # who knows this, knows that the operation's access is over
    clock: Clock | None  # what is over when it happens; of a plain access see `History.clock_of`
    stamp: int  # none that comes after it has a smaller one

    @property
    def away(self) -> bool:
        """Whether it is a plain store to another PE's memory."""
        plain_store = self.op is None and self.writes
        return plain_store and self.space[0] == "heap" and self.space[1] != self.pe

    @property
    def end(self) -> int:
        """Just after the last byte."""
        return self.start + max(0, self.stride * (self.times - 1)) + self.size

    @property
    def low(self) -> int:
        """The first byte."""
        return self.start + min(0, self.stride * (self.times - 1))


class Extent(NamedTuple):
    """What an effect of a call covers: `times` pieces of `size` bytes, `stride` bytes apart."""

    effect: Effect
    address: int
    item: int  # bytes of an element
    size: int
    stride: int
    times: int


def _extent(op: Op, words: list[int]) -> Extent:
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


class Call:
    """A call of an operation, as it is replayed."""

    def __init__(self, pe: int, op: Op, record: Any, site: str) -> None:
        self.by, self.op, self.record, self.site = pe, op, record, site
        words = record["words"].tolist()
        self.stamp = int(record["stamp"])
        self.expected, self.scope = words[1] >> 8, words[1] & 0xFF  # effects to come
        self.pe, self.team, self.compare, self.value = words[2:]
        self.effects: list[Extent] = []
        self.word: Any = None  # what it updates, or looks at
        self.update: Write | None = None
        self.contents: list[dict[int, int]] = [{}, {}, {}]  # values, status, indices of a wait
        self.bit = 0  # its number among those of its PE for the same target; a signal has the next

    def over(self, kind: int, signal: bool = False) -> Bit:
        """What a clock has that knows this of the call."""
        return Bit(kind, self.by, self.pe, self.bit + signal)

    def mark(self, clock: Clock, kind: int, signal: bool = False) -> None:
        """Let a clock know this of the call."""
        clock.put(kind, self.by, self.pe, 1 << self.bit + signal)


class Update(NamedTuple):
    """An atomic operation of numba.cuda, or a plain store, to a word that others look at."""

    what: str
    site: str
    clock: Clock  # what its thread knew, fenced or not


class Store(NamedTuple):
    """A plain store to a word that others look at; what a clock has that knows it."""

    history: History
    pe: int
    launch: int
    thread: int
    when: int
    where: Any

    @property
    def away(self) -> bool:
        """Whether it is to another PE's memory."""
        space = self.where[0]
        return space[0] == "heap" and space[1] != self.pe

    def clock(self) -> tuple[Clock, int]:
        """What its thread knew, and since which stamp."""
        launch = self.history.pes[self.pe].launches[self.launch]
        clock, stamp = launch.at(self.thread, self.when)
        return clock.copy(), stamp

    def known(self, clock: Clock) -> bool:
        """Whether a clock knows that it is over."""
        launch = self.history.pes[self.pe].launches.get(self.launch)
        return launch is not None and launch.over(self.thread, self.when, clock, self.away)

    def tell(self, clock: Clock) -> None:
        """Nothing: a clock that had it would have all that was done since the event before."""


class Block:
    """The threads of a block: what all know, and what some know besides."""

    def __init__(self, clock: Clock, stamp: int) -> None:
        self.phases, self.clocks, self.stamps = [0], [clock], [stamp]
        self.barriers: list[int] = []  # those of the meetings that all its threads waited in
        self.own: dict[int, Clock] = {}  # threads with events since the last barrier

    def met(self, phase: int, clock: Clock, stamp: int) -> None:
        """The block has met, for the `phase`-th time."""
        self.phases.append(phase)
        self.clocks.append(clock)
        self.stamps.append(stamp)


class Launch:
    """A launch."""

    def __init__(self, pe: int, number: int, threads: int, stream: int, submitted: Clock) -> None:
        self.pe, self.number, self.threads, self.stream = pe, number, threads, stream
        self.submitted = submitted
        self.begun = Clock()
        self.ended: Clock | None = None
        self.stamp = 0
        self.site = "?"  # of the host's line
        self.live = 0  # which of the PE's lists says what arrays there were
        self.blocks: dict[int, Block] = {}
        self.past: dict[int, tuple[list[int], list[Clock], list[int]]] = {}  # thread -> its events
        self.groups: dict[Any, list[Any]] = {}  # meetings of warps and the grid
        self.updates = 0  # atomic operations of numba.cuda so far
        self.released: dict[tuple[int, bool], Clock] = {}  # what threads have fenced; for whom

    def block_of(self, thread: int) -> Block:
        """The block of a thread."""
        return self.block(thread // self.threads)

    def block(self, number: int) -> Block:
        """A block, by its number."""
        if number not in self.blocks:
            self.blocks[number] = Block(self.begun, self.stamp)
        return self.blocks[number]

    def clock(self, thread: int) -> Clock:
        """What a thread knows now, to be changed."""
        block = self.block_of(thread)
        if thread not in block.own:
            block.own[thread] = block.clocks[-1].copy()
        return block.own[thread]

    def event(self, thread: int, when: int) -> Clock:
        """The clock of a thread at an event: what it did before, it knows."""
        clock = self.clock(thread)
        clock.times[self.pe, self.number, thread] = when
        return clock

    def release(self, threads: Iterable[int], clock: Clock, system: bool) -> None:
        """What threads know is visible before what they write from now on."""
        for thread in threads:
            self.released[thread, False] = clock
            if system:
                self.released[thread, True] = clock

    def keep(self, thread: int, when: int, stamp: int) -> None:
        """Keep what a thread knows from an event on."""
        times, clocks, stamps = self.past.setdefault(thread, ([], [], []))
        times.append(when)
        clocks.append(self.block_of(thread).own[thread].copy())
        stamps.append(stamp)

    def at(self, thread: int, when: int, all_of_block: bool = False) -> tuple[Clock, int]:
        """What a thread, or the least that a thread of its block, knew; and since which stamp."""
        if thread // self.threads not in self.blocks:
            return self.begun, self.stamp
        block = self.block_of(thread)
        k = bisect.bisect_right(block.phases, when >> PHASE) - 1
        times, clocks, stamps = self.past.get(thread, ((), (), ()))
        j = bisect.bisect_right(times, when) - 1
        if j >= 0 and times[j] >= block.phases[k] << PHASE and not all_of_block:
            return clocks[j], stamps[j]
        return block.clocks[k], block.stamps[k]

    def over(
        self, thread: int, when: int, clock: Clock, away: bool = False, seen: bool = False
    ) -> bool:
        """Whether a clock knows that what a thread did at some time is over.

        `away`: what it has stored to another PE's memory, which has to be fenced, too. `seen`: what
        it has stored, and another PE reads.
        """
        if self.known_time(thread, clock, seen, away) > when:
            return True
        return self.all_over(thread // self.threads, when, clock, away, seen)

    def known_time(self, thread: int, clock: Clock, seen: bool, away: bool = False) -> int:
        """Up to when a clock knows what a thread did; see `over`."""
        return _time(clock, (self.pe, self.number, thread), away, seen)

    def all_over(
        self, block: int, when: int, clock: Clock, away: bool = False, seen: bool = False
    ) -> bool:
        """The same of what all threads of a block did at that time."""
        key = self.pe, self.number, "block", block
        if _time(clock, key, away, seen) > when >> PHASE:
            return True
        return clock.has(ENDED, self.pe, 0, self.number)


def _time(clock: Clock, key: tuple[Any, ...], away: bool, seen: bool) -> int:
    """Up to when a clock knows what a thread or a block did; see `Launch.over`."""
    if away:
        return clock.times.get((*key, OUT), -1)
    time = clock.times.get(key, -1)
    return time if seen else max(time, clock.times.get((*key, LOADS), -1))


class Pe:
    """One PE."""

    def __init__(self, trace: Trace) -> None:
        self.pe, self.trace = trace.pe, trace
        facts = trace.facts
        self.sites = {f["site"]: f["text"] for f in facts if "site" in f}
        # Where the heaps are mapped: this PE's address, bytes from one to the next, how many.
        self.heaps = {(f["heap"], f["stride"], f["n_pes"]) for f in facts if "heap" in f}
        self.arrays = [f for f in facts if "array" in f]
        self.live = [f["live"] for f in facts if "live" in f]  # arrays, as (offset, bytes)
        self.members = {f["members"]: tuple(f["pes"]) for f in facts if "members" in f}
        self.launch_facts = {f["launch"]: f for f in facts if "launch" in f}
        self.reset()

    def reset(self) -> None:
        """Before the log is gone through again."""
        self.host = Clock()
        self.time = 0  # events of the host
        self.launches: dict[int, Launch] = {}
        self.bits: dict[int, int] = defaultdict(int)  # operations so far, by target
        self.current: dict[Any, Call] = {}  # the call that a thread is in
        self.met: dict[Any, int] = defaultdict(int)  # collectives so far, by the members of a team
        self.teams: dict[int, Any] = {}  # number -> members

    def place_all(self, made: np.ndarray[Any, Any]) -> None:
        """As `place`, for the addresses in `start` of PLAINs."""
        starts = made["start"].copy()
        made["space"] = LOCAL
        shared = starts >= SHARED
        made["space"][shared] = SHARED_MEMORY
        made["start"][shared] -= SHARED
        for heap, stride, n_pes in self.heaps:
            owners = (starts - heap) // stride + self.pe
            inside = ~shared & (owners >= 0) & (owners < n_pes)
            made["space"][inside] = owners[inside]
            made["start"][inside] = ((starts - heap) % stride)[inside]

    def space(self, number: int, launch: int) -> Any:
        """The memory that `place_all` means by a number, as `place` names it."""
        if number == SHARED_MEMORY:
            return "shared", self.pe, launch
        return ("memory", self.pe) if number == LOCAL else ("heap", number)

    def place(self, address: int, launch: int) -> tuple[Any, int]:
        """The memory that an address of this PE is in, and where in it."""
        if address >= SHARED:
            return ("shared", self.pe, launch), address - SHARED
        for heap, stride, n_pes in self.heaps:
            owner = (address - heap) // stride + self.pe
            if 0 <= owner < n_pes:
                return ("heap", owner), (address - heap) % stride
        return ("memory", self.pe), address


def _unheard(pe: Pe, records: Any) -> Any:
    """Which records are updates of words that nobody looks at: counters of the PE's own."""
    updates = records["kind"] == log.UPDATE
    addresses, used = records["words"][:, 0], records["words"][:, 1] >> 8 != 0
    unheard = updates & ~np.isin(addresses, addresses[updates & used])
    for heap, stride, n_pes in pe.heaps:
        unheard &= (addresses < heap - pe.pe * stride) | (
            addresses >= heap + (n_pes - pe.pe) * stride
        )
    return unheard


class History:
    """What all PEs did, in an order that agrees with what depended on what."""

    def __init__(self, traces: Iterable[Trace]) -> None:
        self.pes = {trace.pe: Pe(trace) for trace in traces}
        self.files: dict[str, str] = {}
        for pe in self.pes.values():
            for fact in pe.trace.facts:
                self.files |= fact.get("files", {})
                if fact.get("path"):
                    self.files[Path(fact["path"]).name] = fact["path"]
        self.words: dict[Any, Word] = {}
        self.ordered_by_waits: dict[Any, frozenset[Any]] = {}
        self.accesses: list[Access] = []
        self._plain: dict[int, np.ndarray[Any, Any]] = {}
        self._events = self._sorted()

    def _sorted(self) -> list[tuple[Pe, Any]]:
        events: list[tuple[int, int, int]] = []
        for pe in self.pes.values():
            records = pe.trace.records
            places = np.flatnonzero((records["kind"] > log.ACCESS) & ~_unheard(pe, records))
            stamps = records["stamp"][places].tolist()
            events += ((stamp, pe.pe, k) for stamp, k in zip(stamps, places.tolist(), strict=True))
        events.sort()
        return [(self.pes[pe], self.pes[pe].trace.records[k]) for _, pe, k in events]

    def replay(self) -> None:
        """Go through all events, until waits order nothing new; then collect the accesses.

        The first time waits order nothing, but all writes become known, also those that come later.
        """
        self._hears = False
        self._pass(collect=False)
        self._hears, stores = True, self._stores_to_words()
        for _ in range(PASSES):
            before = dict(self.ordered_by_waits)
            self._pass(stores, collect=False)
            if self.ordered_by_waits == before:
                break
        self._pass(stores, collect=True)
        self._sections = [sections for where in self.taken if (sections := self._of_lock(where))]

    def _of_lock(self, where: Any) -> list[tuple[Bit, Write]]:
        """From where a word is changed, by who saw what it was, to where it is that again."""
        writes = self.words[where].writes.values()
        sections = []
        for taken, free in self.taken[where]:
            given = (w for w in writes if (w.how, w.value) == ("set", free) and w.over != taken)
            back = next((w for w in given if taken.known(w.clock)), None)
            if back is not None:
                sections.append((taken, back))
        return sections

    def excluded(self, first: Access, one: int, second: Access, two: int) -> bool:
        """Whether a lock keeps two accesses apart, whichever comes first.

        Each is made after somebody took the lock, and is over, and fenced, when it is given back.
        """
        for sections in self._sections:
            held = [
                {
                    taken
                    for taken, back in sections
                    if taken.known(self.clock_of(access, thread))
                    and self.over(access, thread, back.clock)
                }
                for access, thread in ((first, one), (second, two))
            ]
            if held[0] and held[1] and len(held[0] | held[1]) > 1:
                return True
        return False

    def _stores_to_words(self) -> list[tuple[Any, Store, int, str]]:
        """Plain stores to what others look at: the word, the store, the value, and its line."""
        words: dict[Any, list[int]] = defaultdict(list)
        for space, start in self.words:
            words[space].append(start)
        found = []
        for pe in self.pes.values():
            rows = self.plain(pe.pe)
            for number in np.unique(rows["space"]).tolist():
                if number == SHARED_MEMORY:
                    continue
                space = pe.space(number, 0)
                here = (rows["space"] == number) & np.isin(rows["start"], words[space])
                for row in rows[here & (rows["valued"] != 0)]:
                    launch, thread, when = (int(row[k]) for k in ("launch", "thread", "clock"))
                    where = space, int(row["start"])
                    store = Store(self, pe.pe, launch, thread, when, where)
                    found.append((where, store, int(row["value"]), self.site_of(pe, row)))
        return found

    def _pass(self, stores: Iterable[Any] = (), *, collect: bool) -> None:
        for where, store, value, site in stores:  # as they were in the last pass
            clock, stamp = store.clock()
            if store.away:
                fenced = clock.masks.get((FENCED, store.pe, where[0][1]), 0)
                clock.put(DONE, store.pe, where[0][1], fenced)
                self._only_fenced(self.pes[store.pe], clock)
            by = Update("store", site, clock)
            self.words[where].put(Write(store, "set", value, clock, by, stamp))
        for pe in self.pes.values():
            pe.reset()
        self.accesses = []
        self.meetings: dict[Any, dict[int, Clock]] = defaultdict(dict)
        # Words that somebody changed who saw what they were: what knows of it, and what it saw.
        self.taken: dict[Any, list[tuple[Bit, int]]] = defaultdict(list)
        self._collect = collect
        for pe, record in self._events:
            HANDLERS[int(record["kind"])](self, pe, record, record["words"].tolist())

    # --- threads

    def _event(self, pe: Pe, record: Any) -> Clock:
        """The clock of who made a record, at this event."""
        launch = int(record["launch"])
        if launch == 0:
            pe.time += 1
            pe.host.times["host", pe.pe] = pe.time
            return pe.host
        return pe.launches[launch].event(int(record["thread"]), int(record["clock"]))

    def _keep(self, pe: Pe, record: Any) -> None:
        launch = int(record["launch"])
        if launch:
            pe.launches[launch].keep(
                int(record["thread"]), int(record["clock"]), int(record["stamp"])
            )

    def _who(self, record: Any) -> Any:
        return int(record["launch"]), int(record["thread"])

    # --- launches and the host

    def _submit(self, pe: Pe, record: Any, words: list[int]) -> None:
        number, threads, stream, live = words[:4]
        clock = self._event(pe, record)
        pe.launches[number] = launch = Launch(pe.pe, number, threads, stream, clock.copy())
        launch.site, launch.live = self._site(pe, record), live

    def _begin(self, pe: Pe, record: Any, words: list[int]) -> None:
        launch = pe.launches[int(record["launch"])]
        launch.begun, launch.stamp = launch.submitted.copy(), int(record["stamp"])
        for other in pe.launches.values():
            after = other.number < launch.number and other.ended is not None
            # The default stream, 0, waits for all others, and they for it; -1 is none of them.
            if (
                after
                and -1 not in (launch.stream, other.stream)
                and (launch.stream == other.stream or 0 in (launch.stream, other.stream))
            ):
                launch.begun.join(other.ended or Clock())
        launch.begun.forget_threads()

    def _end(self, pe: Pe, record: Any, words: list[int]) -> None:
        launch = pe.launches[int(record["launch"])]
        launch.ended = launch.begun.copy()
        for block in launch.blocks.values():
            launch.ended.join(block.clocks[-1])
            for clock in block.own.values():
                launch.ended.join(clock)
        launch.ended.put(ENDED, pe.pe, 0, 1 << launch.number)
        launch.ended.forget_threads()

    def _sync(self, pe: Pe, record: Any, words: list[int]) -> None:
        clock = self._event(pe, record)
        before, one, stream = words[:3]
        for launch in pe.launches.values():
            waited = launch.number == one or (launch.number < before and launch.stream >= 0)
            waited |= stream != 0 and launch.stream == stream
            if launch.ended is not None and waited:
                clock.join(launch.ended)
        clock.forget_threads()

    def _call(self, pe: Pe, record: Any, words: list[int]) -> None:
        clock = self._event(pe, record)
        if words[0] == 0:
            self._complete(pe, clock)
            self._arrive(pe, "host", clock)
        else:
            self._leave(pe, "host", clock)

    def _arrive(self, pe: Pe, team: Any, clock: Clock) -> None:
        pe.met[team] += 1
        self.meetings[team, pe.met[team]][pe.pe] = clock.copy()

    def _leave(self, pe: Pe, team: Any, clock: Clock) -> None:
        for other in self.meetings[team, pe.met[team]].values():
            clock.join(other)
        clock.forget_threads()

    def _host(self, pe: Pe, record: Any, words: list[int]) -> None:
        clock = self._event(pe, record)
        address, nbytes, how = words[:3]
        space, start = pe.place(address, 0)
        self._add(
            Access(
                space, start, nbytes, 0, 1, how == STORE, False, pe.pe, 0, 0, 0, pe.time,
                self._site(pe, record), None, None, None, clock.copy(), int(record["stamp"]),
            )
        )  # fmt: skip

    def _team(self, pe: Pe, record: Any, words: list[int]) -> None:
        pe.teams[words[0]] = pe.members[words[1]]

    # --- atomic operations of numba.cuda

    def _update(self, pe: Pe, record: Any, words: list[int]) -> None:
        address, how, operand, expected, old, _ = words
        what, used = how & 0xFF, bool(how >> 8)
        launch, thread = pe.launches[int(record["launch"])], int(record["thread"])
        clock = self._event(pe, record)
        where = pe.place(address, launch.number)
        word = self.words.setdefault(where, Word())
        step = Bit(UPDATED, pe.pe, launch.number, launch.updates)
        launch.updates += 1
        if used and self._hears:
            self.ordered_by_waits[step, 0] = word.hear(step, clock, CMP_EQ, old)
        if what != CAS or old == expected:
            # Relaxed: others that see it know only what was fenced before.
            away = where[0][0] == "heap" and where[0][1] != pe.pe
            known = launch.released.get((thread, away), launch.begun).copy()
            for key, mask in clock.masks.items():
                if key[0] == UPDATED:
                    known.know(key, mask)
            step.tell(known)
            value = operand if what != OTHER else None
            by = Update("atomic operation", self._site(pe, record), clock.copy())
            stamp = int(record["stamp"])
            word.put(Write(step, HOW.get(what, "set"), value, known, by, stamp))
            if what == CAS or (what == SET and used and old != operand):
                self.taken[where].append((step, old))
        step.tell(clock)
        self._keep(pe, record)

    def _threadfence(self, pe: Pe, record: Any, words: list[int]) -> None:
        clock = self._event(pe, record)
        scope, thread = words[0], int(record["thread"])
        if scope == SYSTEM:
            self._send(pe, clock)
        if scope:
            launch = pe.launches[int(record["launch"])]
            launch.release([thread], clock.copy(), scope == SYSTEM)
        self._keep(pe, record)

    # --- barriers of kernels

    def _met(self, pe: Pe, record: Any, words: list[int]) -> None:
        launch = pe.launches[int(record["launch"])]
        number, phase = words[:2]
        block = launch.block(number)
        clock = block.clocks[-1].copy()
        for own in block.own.values():
            clock.join(own)
        block.own = {}
        for key in [k for k in clock.times if k[:2] == (pe.pe, launch.number) and len(k) == 3]:
            if key[2] // launch.threads == number:
                del clock.times[key]  # it follows from the meeting
        clock.times[pe.pe, launch.number, "block", number] = phase
        block.met(phase, clock, int(record["stamp"]))
        block.barriers.append(phase)

    def _arrived(self, pe: Pe, record: Any, words: list[int]) -> None:
        clock = self._event(pe, record)
        self._keep(pe, record)
        launch, thread = pe.launches[int(record["launch"])], int(record["thread"])
        met = launch.groups.setdefault(self._group(launch, thread, words), [Clock(), False])
        if met[1]:  # they have left the meeting before
            met[:] = [Clock(), False]
        met[0].join(clock)

    def _contents(self, pe: Pe, record: Any, words: list[int]) -> None:
        which, index, number = words[:3]
        pe.current[self._who(record)].contents[which][index] = number

    def _left(self, pe: Pe, record: Any, words: list[int]) -> None:
        clock = self._event(pe, record)
        launch, thread = pe.launches[int(record["launch"])], int(record["thread"])
        if words[0] != CALL_OF_WARP:  # of that it knows already, see `_spread`
            met = launch.groups[self._group(launch, thread, words)]
            met[1] = True
            clock.join(met[0])
        self._keep(pe, record)

    def _group(self, launch: Launch, thread: int, words: list[int]) -> Any:
        if words[0]:
            return "grid"
        return "warp", thread // launch.threads, thread % launch.threads // LANES, words[1]

    # --- operations

    def _op(self, pe: Pe, record: Any, words: list[int]) -> None:
        call = Call(pe.pe, ROWS[words[0]], record, self._site(pe, record))
        pe.current[self._who(record)] = call
        if not call.expected:
            self._perform(pe, call)

    def _effect(self, pe: Pe, record: Any, words: list[int]) -> None:
        call = pe.current[self._who(record)]
        call.effects.append(_extent(call.op, words))
        call.record = record
        if len(call.effects) == call.expected:
            self._perform(pe, call)

    def _perform(self, pe: Pe, call: Call) -> None:
        """A call begins: what it orders, reads and writes from now on."""
        record, op = call.record, call.op
        clock = self._event(pe, record)
        call.bit = pe.bits[call.pe]
        pe.bits[call.pe] += 2
        known = clock  # what all who call knew before
        if call.scope and int(record["launch"]):
            known = self._of_all(pe, call, clock)
            self._gather(pe, call, clock)
        if op.facts.orders in ("quiet", "barrier"):
            self._complete(pe, clock)
        elif op.facts.orders == "flush":
            self._know(pe, clock, READ)
        elif op.facts.orders == "fence":
            self._know(pe, clock, FENCED)
            self._send(pe, clock)
        if op.facts.meets:
            self._arrive(pe, pe.teams.get(call.team), clock)
        if op.facts.orders and op.facts.orders != "flush" and int(record["launch"]):
            launch = pe.launches[int(record["launch"])]
            thread = int(record["thread"])
            threads = range(*self._threads(launch, call, thread)) if call.scope else (thread,)
            launch.release(threads, clock.copy(), system=True)
        if call.effects:
            self._effects(pe, call, known)
            call.mark(clock, CALLED)
            call.mark(clock, CALLED, signal=True)
        self._spread(pe, record, call, clock)

    def _done(self, pe: Pe, record: Any, words: list[int]) -> None:
        """A call has returned."""
        call = pe.current.pop(self._who(record))
        clock = self._event(pe, record)
        op, facts = call.op, call.op.facts
        if facts.meets:
            self._leave(pe, pe.teams.get(call.team), clock)
        self._hear(pe, call, clock, words)
        completion = facts.completion
        if completion is None or completion.source == RETURN:
            call.mark(clock, READ)
        fetches = op.returns.dtype is not None and any(
            e.effect.how == UPDATES for e in call.effects
        )
        local = facts.meets or op.waits or call.pe < 0
        if local or fetches or (completion is not None and completion.data == RETURN):
            call.mark(clock, DONE)
        self._spread(pe, record, call, clock)

    def _spread(self, pe: Pe, record: Any, call: Call, clock: Clock) -> None:
        """What the thread that acts for a group now knows of the call, all of the group know."""
        launch = pe.launches.get(int(record["launch"]))
        if launch is None:
            return
        thread, when = int(record["thread"]), int(record["clock"])
        stamp = int(record["stamp"])
        launch.keep(thread, when, stamp)
        if call.scope == 0:
            return
        phase = (when >> PHASE) + 1
        news = self._news(call, clock)
        if call.scope == 2:
            self._meet(launch, call, thread, phase, news, stamp)
            return
        for other in range(*self._threads(launch, call, thread)):
            if other != thread:
                launch.clock(other).join(news)

    def _news(self, call: Call, clock: Clock) -> Clock:
        """What the others of a group learn from who acts for them, who has this clock."""
        if call.op.facts.meets:
            return clock.copy()
        news = Clock()
        for kind in (CALLED, READ, DONE):
            key = kind, call.by, call.pe
            news.know(key, clock.masks.get(key, 0) & 3 << call.bit)
        for key, mask in clock.masks.items():
            if call.op.facts.orders and key[0] == READ:
                news.know(key, mask)
        return news

    def _meet(
        self, launch: Launch, call: Call, thread: int, phase: int, news: Clock, stamp: int
    ) -> None:
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

    def _threads(self, launch: Launch, call: Call, thread: int) -> tuple[int, int]:
        """The threads that make a call together: from, to."""
        block = thread - thread % launch.threads
        if call.scope == 2:
            return block, block + launch.threads
        first = block + thread % launch.threads // LANES * LANES
        return first, min(first + LANES, block + launch.threads)

    def _know(self, pe: Pe, clock: Clock, kind: int) -> None:
        """Of the calls of this PE that a clock knows, know this, too."""
        for key, mask in list(clock.masks.items()):
            if key[0] == CALLED and key[1] == pe.pe:
                clock.put(kind, pe.pe, key[2], mask)

    def _complete(self, pe: Pe, clock: Clock) -> None:
        """`quiet`: all that is known to have been called is over."""
        for kind in (READ, DONE):
            self._know(pe, clock, kind)
        self._send(pe, clock)

    def _send(self, pe: Pe, clock: Clock) -> None:
        """A fence, or more: what was stored to other PEs' memory arrives before what follows."""
        for key, time in list(clock.times.items()):
            if key[0] == pe.pe and key[-1] not in (OUT, LOADS):
                sent = (*key, OUT)
                clock.times[sent] = time

    def _only_fenced(self, pe: Pe, clock: Clock) -> None:
        """What another PE learns: of what was stored before, only what was fenced is seen there."""
        for key, time in list(clock.times.items()):
            if key[0] == pe.pe and key[-1] not in (OUT, LOADS):
                begun = (*key, LOADS)
                clock.times[begun] = max(time, clock.times.get(begun, -1))
                clock.times[key] = clock.times.get((*key, OUT), -1)

    def _effects(self, pe: Pe, call: Call, known: Clock) -> None:
        record, launch, op = call.record, int(call.record["launch"]), call.op
        reading = known.copy()
        arriving = reading.copy()
        if call.pe >= 0:
            fenced = known.masks.get((FENCED, pe.pe, call.pe), 0)
            arriving.put(DONE, pe.pe, call.pe, fenced)
        if call.pe not in (-1, pe.pe):
            self._only_fenced(pe, arriving)
        told = arriving.copy()
        for kind in (CALLED, READ, DONE):
            call.mark(told, kind)
        for effect, address, _, size, stride, times in call.effects:
            role = op.arrays[effect.array]
            space, start = pe.place(address, launch)
            if call.pe >= 0 and role.symmetric and space[0] == "heap" and not op.waits:
                space = "heap", call.pe
            signal = effect.kind == SIGNAL and effect.how != READS
            local_read = effect.how == READS and not (call.pe >= 0 and role.symmetric)
            over = call.over(READ if local_read else DONE, signal)
            atomic = effect.kind != DATA or op.base in ("p", "g")
            now = told if signal else reading if effect.how == READS else arriving
            if times:
                self._add(
                    Access(
                        space, start, size, stride, times, effect.how != READS, atomic, pe.pe,
                        launch, int(record["thread"]), 0, int(record["clock"]), call.site, op, call,
                        over, now, call.stamp,
                    )
                )  # fmt: skip
            call.word = space, start
            if effect.how != READS and atomic:
                self._write(call, effect, (space, start), now, over)

    def _gather(self, pe: Pe, call: Call, clock: Clock) -> None:
        """Let who acts for a group know what the others know: all, or of which calls to flush."""
        launch = pe.launches[int(call.record["launch"])]
        thread = int(call.record["thread"])
        first, last = self._threads(launch, call, thread)
        own = launch.block_of(thread).own
        if call.op.facts.meets and call.scope == 2:  # all that was done before this meeting
            phase = (int(call.record["clock"]) >> PHASE) + 1
            clock.times[pe.pe, launch.number, "block", thread // launch.threads] = phase
        for other in range(first, last):
            if call.op.facts.meets:
                if other in own:
                    clock.join(own[other])
                if call.scope == 1 and other != thread:  # up to its call, whatever its clock
                    when = int(call.record["clock"]) >> PHASE << PHASE | UP_TO_NOW
                    clock.times[pe.pe, launch.number, other] = when
            elif call.op.facts.orders and other in own:
                for key, mask in own[other].masks.items():
                    if key[0] == CALLED:
                        clock.know(key, mask)

    def _of_all(self, pe: Pe, call: Call, clock: Clock) -> Clock:
        """What every thread of a group knows when it calls: what one alone did is not included."""
        launch = pe.launches[int(call.record["launch"])]
        thread = int(call.record["thread"])
        first, last = self._threads(launch, call, thread)
        block = launch.block_of(thread)
        base = block.clocks[-1]
        others = [block.own.get(t, base) for t in range(first, last) if t != thread]
        least = clock.copy()
        for other in {id(other): other for other in others}.values():
            least.meet(other)
        return least

    def _write(self, call: Call, effect: Any, where: Any, clock: Clock, over: Bit) -> None:
        how, value = "set", call.value
        if effect.kind == SIGNAL:
            how = "add" if call.compare == SIGNAL_ADD else "set"
        else:
            what = call.op.base.removeprefix("atomic_").removeprefix("fetch_")
            if what == "inc":
                what, value = "add", 1
            how = what if what in CHANGES else "set"
        if effect.how == UPDATES:
            clock = clock.copy()
            call.mark(clock, CALLED)
        call.update = Write(over, how, value, clock, call, call.stamp)
        self.words.setdefault(where, Word()).put(call.update)

    def _hear(self, pe: Pe, call: Call, clock: Clock, words: list[int]) -> None:
        """What a wait, or a test, lets its caller know."""
        op, result, truth = call.op, words[1], words[2]
        if op.base.startswith("atomic_") and op.returns.dtype is not None and words[2] == INTEGER:
            self._fetched(call, clock, result)
            return
        looked = [e for e in call.effects if e.effect.how == READS and e.effect.kind != DATA]
        if not looked or op.base.startswith("atomic_"):
            return
        _, address, item, size, _, _ = looked[0]
        compare, value = call.compare, call.value
        values, status, some = call.contents
        indices: Iterable[int] = [k for k in range(size // item) if not status.get(k)]
        if op.base == "signal_fetch":
            compare, value = CMP_EQ, result
        elif op.base.endswith(("_any", "_any_vector")):
            indices = range(result, result + 1) if result >= 0 else range(0)
        elif not result and (truth == TRUTH or op.base.endswith(("_some", "_some_vector"))):
            return
        elif op.base.endswith(("_some", "_some_vector")):
            indices = some.values()
        for index in indices:
            space, start = pe.place(address + index * item, int(call.record["launch"]))
            word = self.words.setdefault((space, start), Word())
            # Who knows this of the wait, comes after it.
            call.mark(clock, CALLED)
            who = call.over(CALLED)
            if self._hears:
                self.ordered_by_waits[who, index] = word.hear(
                    who, clock, compare, values.get(index, value)
                )

    def _fetched(self, call: Call, clock: Clock, old: int) -> None:
        """What an atomic operation, which saw this, lets its caller know."""
        word, who = self.words.setdefault(call.word, Word()), call.over(CALLED)
        if self._hears:
            self.ordered_by_waits[who, 0] = word.hear(who, clock, CMP_EQ, old)
        change = call.op.base.removeprefix("atomic_")
        if call.update is None or change not in ("compare_swap", "swap"):
            return
        if change == "compare_swap" and old != call.compare:
            word.drop(call.update)
            return
        if old != call.value:
            self.taken[call.word].append((call.update.over, old))

    # --- accesses

    def _add(self, access: Access) -> None:
        if self._collect:
            self.accesses.append(access)

    def site_of(self, pe: Pe, record: Any) -> str:
        """The line of a record."""
        return pe.sites.get(int(record["site"]), "?")

    def _site(self, pe: Pe, record: Any) -> str:
        text = self.site_of(pe, record)
        launch = pe.launches.get(int(record["launch"]))
        # What performs an operation for the host has no lines.
        return launch.site if launch is not None and ":" not in text else text

    def plain(self, pe: int) -> np.ndarray[Any, Any]:
        """The loads and stores of a PE's kernels: `PLAIN`."""
        if pe not in self._plain:
            self._plain[pe] = self._read_plain(pe)
        return self._plain[pe]

    def _read_plain(self, pe: int) -> np.ndarray[Any, Any]:
        trace = self.pes[pe].trace
        records = trace.records[trace.records["kind"] == log.ACCESS]
        made = np.zeros(len(records), PLAIN)
        for name in ("launch", "thread", "clock", "site"):
            made[name] = records[name]
        for k, name in enumerate(("start", "stride", "count", "step", "size", "how")):
            made[name] = records["words"][:, k]
        one = made["count"] == 1
        made["value"] = made["stride"]
        made["stride"][one] = 0
        made["valued"], made["how"] = one & (made["how"] >= VALUED), made["how"] % VALUED
        self.pes[pe].place_all(made)
        reach = made["stride"] * (made["count"] - 1)
        made["low"] = made["start"] + np.minimum(reach, 0)
        made["end"] = made["start"] + np.maximum(reach, 0) + made["size"]
        return made

    def access(self, pe: int, row: Any) -> Access:
        """One of them."""
        start, stride, count, step, size, how = (
            int(row[k]) for k in ("start", "stride", "count", "step", "size", "how")
        )
        launch, thread, when = (int(row[k]) for k in ("launch", "thread", "clock"))
        space = self.pes[pe].space(int(row["space"]), launch)
        return Access(
            space, start, size, stride, count, how != LOAD, how == ATOMIC,
            pe, launch, thread, step, when, self.pes[pe].sites.get(int(row["site"]), "?"), None,
            None, None, None, 0,
        )  # fmt: skip

    def clock_of(self, access: Access, thread: int) -> Clock:
        """What a thread that made an access knew then."""
        if access.clock is not None:
            return access.clock
        return self.pes[access.pe].launches[access.launch].at(thread, access.when)[0]

    def least_clock_of(self, access: Access) -> Clock:
        """What all threads that made an access knew then."""
        if access.clock is not None or access.step == 0 or access.times == 1:
            return self.clock_of(access, access.thread)
        launch = self.pes[access.pe].launches[access.launch]
        last = access.thread + access.times - 1
        if access.thread // launch.threads != last // launch.threads:
            return launch.begun
        return launch.at(access.thread, access.when, all_of_block=True)[0]

    def over(self, access: Access, thread: int, clock: Clock, seen: bool = True) -> bool:
        """Whether a clock knows that a thread's part of an access is over; `seen`: by a read."""
        if access.over is not None:
            return access.over.known(clock)
        if access.launch == 0:
            return clock.times.get(("host", access.pe), -1) > access.when
        launch = self.pes[access.pe].launches[access.launch]
        seen = seen and access.writes
        return launch.over(thread, access.when, clock, access.away, seen)

    def all_over(self, access: Access, clock: Clock) -> bool:
        """Whether a clock knows that all of an access is over."""
        if access.over is not None or access.step == 0 or access.times == 1:
            return self.over(access, access.thread, clock)
        launch = self.pes[access.pe].launches[access.launch]
        last = access.thread + access.times - 1
        block = access.thread // launch.threads
        if block != last // launch.threads:
            return clock.has(ENDED, access.pe, 0, access.launch)
        return launch.all_over(block, access.when, clock, access.away, access.writes)


HANDLERS = {
    log.OP: History._op, log.EFFECT: History._effect, log.DONE: History._done,
    log.MET: History._met, log.ARRIVED: History._arrived, log.LEFT: History._left,
    log.SUBMIT: History._submit, log.BEGIN: History._begin, log.END: History._end,
    log.SYNC: History._sync, log.CALL: History._call, log.TEAM: History._team,
    log.HOST: History._host, log.CONTENTS: History._contents,
    log.UPDATE: History._update, log.THREADFENCE: History._threadfence,
}  # fmt: skip


def history(traces: Iterable[Trace]) -> History:
    """What the logs say."""
    made = History(traces)
    made.replay()
    return made
