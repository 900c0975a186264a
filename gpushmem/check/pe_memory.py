"""The PEs, where they see memory, and their plain loads and stores."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any

import numpy as np

from gpushmem.check import log
from gpushmem.check.accesses import LOCAL, PLAIN, SHARED_MEMORY
from gpushmem.check.calls import ROWS, Call, extent
from gpushmem.check.launches import OF_BLOCK, OF_GPU, OF_SYSTEM, Launch, Times
from gpushmem.check.log import SHARED, Record, Trace
from gpushmem.check.vector_clock import DEFAULT_QPS, EARLIER, ENDED, NONE, Clock
from gpushmem.ops import QP_ANY, QP_DEFAULT
from gpushmem.ops.row import SIGNAL, WORDS
from gpushmem.simt.observe import ADD, ATOMIC, LOAD, RELAXED, VALUED

SIZE, HOWS = (1 << log.ROWS - 2) - 1, (1 << log.HOW) - 1

CELL = 3  # bits of an offset within a word of 8 bytes
__all__ = ["CELL", "Pe", "ends_of_units", "looked_at", "refused", "unheard", "unheard_sums"]


class Pe:
    """One PE."""

    def __init__(self, trace: Trace, teams: dict[int, Any] | None = None) -> None:
        self.pe, self.trace = trace.pe, trace
        self._teams = teams or {}  # that there were before
        facts = trace.facts
        self.sites = {f["site"]: f["text"] for f in facts if "site" in f}
        # Where the heaps are mapped: this PE's address, bytes from one to the next, how many.
        self.heaps = {(f["heap"], f["stride"], f["n_pes"]) for f in facts if "heap" in f}
        self.arrays = [f for f in facts if "array" in f]
        self.memories = [f for f in facts if "memory" in f]  # that are not symmetric
        self.live = [f["live"] for f in facts if "live" in f]  # arrays, as (offset, bytes)
        self.members = {f["members"]: tuple(f["pes"]) for f in facts if "members" in f}
        self._times: dict[int, Times] = {}
        self.launch_facts = {f["launch"]: f for f in facts if "launch" in f}
        self.reset()

    def reset(self) -> None:
        """Before the log is gone through again."""
        self.host = Clock()
        EARLIER.tell(self.host)
        self.time = 0  # events of the host
        self.writes = 0  # by it
        self.launches: dict[int, Launch] = {}
        self.ended = NONE  # launches
        self.bits: dict[int, int] = defaultdict(int)  # operations so far, by target
        self.gets: dict[int, int] = defaultdict(int)  # ... of these, those that only fetch
        # ... and those that use a queue pair: target -> its number -> bits of operations
        self.on_qps: dict[int, dict[int, int]] = defaultdict(lambda: defaultdict(int))
        self.current: dict[Any, Call] = {}  # the call that a thread is in
        self.met: dict[Any, int] = defaultdict(int)  # collectives so far, by the members of a team
        self.teams = dict(self._teams)  # number -> members

    def number(self, call: Call) -> None:
        """Give a call its number among those for its target."""
        call.bit = self.bits[call.pe]
        signals = any(each.effect.kind == SIGNAL for each in call.effects)
        call.parts = 1 + signals if call.effects else 0
        self.bits[call.pe] += call.parts
        bits = (1 << call.parts) - 1 << call.bit
        if call.fetches:
            self.gets[call.pe] |= bits
        if call.qp != QP_DEFAULT:
            self.on_qps[call.pe][call.qp] |= bits

    def fenced(self, qps: int, target: int) -> int:
        """As `on`, of those that a fence orders: not of gets."""
        return self.on(qps, target) & ~self.gets[target]

    def on(self, qps: int, target: int) -> int:
        """Which operations for a target use queue pairs of a set, as bits."""
        used = self.on_qps.get(target, {})
        found = 0
        for qp, bits in used.items():
            if qp != QP_ANY and qps >> (qp & 63) & 1:
                found |= bits
        if qps & DEFAULT_QPS:
            found |= ~sum(used.values())
        return found

    def site_of(self, record: Record) -> str:
        """The line of a record; what performs an operation for the host has that of the host."""
        text = self.sites.get(record.site, "?")
        launch = self.launches.get(record.launch)
        return launch.site if launch is not None and ":" not in text else text

    def block_of(self, who: tuple[int, int, int]) -> Any:
        """The block of a thread, given by PE, launch and number; None: it is of the host."""
        pe, number, thread = who
        return (pe, number, thread // self.launches[number].threads) if number else None

    def scope(self, one: tuple[int, int, int], other: tuple[int, int, int]) -> int:
        """The scope of a fence for two threads; the first is of this PE."""
        if one[0] != other[0]:
            return OF_SYSTEM
        block = self.block_of(one)
        return OF_BLOCK if block is not None and block == self.block_of(other) else OF_GPU

    def event(self, record: Record) -> Clock:
        """The clock of who made a record, at this event."""
        launch = record.launch
        if launch == 0:
            self.time += 1
            self.host.times["host", self.pe] = self.time
            return self.host
        return self.launches[launch].event(record.thread, record.clock)

    def ended_before(self, number: int, clock: Clock) -> Iterator[Launch]:
        """The launches with smaller numbers that have ended, and of which a clock does not know it.

        The last one first: a clock that is told of its end may know of the ends of others.
        """
        key = ENDED, self.pe, 0
        while number > (known := clock.masks.get(key, NONE)).base:
            below = (1 << number - known.base) - 1
            left = self.ended.above(known.base) & ~known.rest & below
            if not left:
                return
            number = known.base + left.bit_length() - 1
            yield self.launches[number]

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

    @staticmethod
    def _rows(made: Any, words: Any) -> Any:
        """Each row on its own, of several equal ones the first."""
        rows, turn, pitch = words[:, 3] >> log.ROWS, words[:, 3] >> 1 & 1, words[:, 4] >> log.HOW
        rows = np.where((pitch == 0) & (turn == 0), 1, rows)
        k = np.arange(rows.sum()) - np.repeat(np.cumsum(rows) - rows, rows)
        made = np.repeat(made, rows)
        made["start"] += k * np.repeat(pitch, rows)
        made["thread"] += k * np.repeat(turn, rows)
        return made

    def times_of(self, launch: int) -> Times:
        """When the threads of a launch load and store."""
        if launch not in self._times:
            rows, launches = self._by_launch
            first, end = np.searchsorted(launches, (launch, launch + 1))
            self._times[launch] = Times(rows[first:end])
        return self._times[launch]

    @cached_property
    def _by_launch(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """The loads and stores in the order of their launches, and the numbers of these."""
        rows = self.plain[np.argsort(self.plain["launch"], kind="stable")]
        return rows, rows["launch"]

    @cached_property
    def plain(self) -> np.ndarray[Any, Any]:
        """The loads and stores of its kernels: `PLAIN`."""
        records = self.trace.records[self.trace.records["kind"] == log.ACCESS]
        made = np.zeros(len(records), PLAIN)
        for name in ("stamp", "launch", "thread", "clock", "site"):
            made[name] = records[name]
        words = records["words"]
        for k, name in enumerate(("start", "stride", "count")):
            made[name] = words[:, k]
        made["size"], made["step"] = (words[:, 3] >> 2) & SIZE, words[:, 3] & 1
        how, made["value"] = words[:, 4] & HOWS, words[:, 5]
        made["valued"], made["wide"] = how & VALUED != 0, how & RELAXED != 0
        how %= VALUED
        made["how"], made["fetches"] = np.minimum(how, ATOMIC), (how == LOAD) | (how == ATOMIC)
        made = self._rows(made, words)
        self.place_all(made)
        reach = made["stride"] * (made["count"] - 1)
        made["low"] = made["start"] + np.minimum(reach, 0)
        made["end"] = made["start"] + np.maximum(reach, 0) + made["size"]
        return made


def _effects_of(records: Any, rows: Iterable[int]) -> tuple[Any, Any]:
    """The words of the effects of calls of some rows; and of each effect the row."""
    places = np.flatnonzero(np.isin(records["kind"], (log.OP, log.EFFECT)))
    places = places[np.lexsort((records["thread"][places], records["launch"][places]))]
    kinds, words = records["kind"][places], records["words"][places]
    call = np.cumsum(kinds == log.OP)
    row = np.full(call.max(initial=0) + 1, -1)
    row[call[kinds == log.OP]] = words[kinds == log.OP, 0]
    chosen = (kinds == log.EFFECT) & np.isin(row[call], [*rows])
    return words[chosen], row[call][chosen]


def ends_of_units(pe: Pe, records: Any, rows: Iterable[int]) -> set[int]:
    """Where what calls of some rows put, or wait for, begins and ends, as offsets in heaps.

    Between two such places units are put, and waited for, together: the first stands for all.
    """
    found = set()
    words, ops = _effects_of(records, rows)
    for op, *effect in np.unique(np.column_stack([ops, words]), axis=0).tolist():
        one = extent(ROWS[op], effect)
        if one.effect.kind in WORDS:
            start = pe.place(one.address, 0)[1]
            starts = range(start, start + max(one.stride * one.times, 1), max(one.stride, 1))
            found |= {*starts, *(first + one.size for first in starts)}
    return found


def looked_at(pe: Pe, records: Any, looks: Iterable[int]) -> set[int]:
    """The words, as offsets >> CELL, that calls of some rows, or atomic operations, look at."""
    effects, _ = _effects_of(records, looks)
    updates = records["words"][records["kind"] == log.UPDATE]
    used = updates[updates[:, 1] >> 8 != 0, 0]
    starts = [*effects[:, 1].tolist(), *np.unique(used).tolist()]
    sizes = [*effects[:, 2].tolist(), *[1] * (len(starts) - len(effects))]
    found: set[int] = set()
    for start, size in set(zip(starts, sizes, strict=True)):
        first = pe.place(start, 0)[1]
        found.update(range(first >> CELL, (first + max(size, 1) - 1 >> CELL) + 1))
    return found


def refused(records: Any, waits: Iterable[int] = ()) -> Any:
    """Which records are of calls that ended with an error: what they had to do was not done.

    In a kernel nothing more is recorded of such a call: the launch ends. But so it is of those of
    the rows `waits`, which may have waited until the job was ended.
    """
    places = np.flatnonzero(np.isin(records["kind"], (log.OP, log.EFFECT, log.CONTENTS, log.DONE)))
    places = places[np.lexsort((records["thread"][places], records["launch"][places]))]
    kinds, results = records["kind"][places], records["words"][places, 2]
    call = np.cumsum(kinds == log.OP)
    launch = np.zeros(call.max(initial=0) + 1, np.int64)
    launch[call] = records["launch"][places]
    bad = np.isin(launch, records["launch"][records["kind"] == log.END])
    bad[call[kinds == log.DONE]] = False
    bad[call[(kinds == log.OP) & np.isin(records["words"][places, 0], [*waits])]] = False
    bad[call[(kinds == log.DONE) & (results == log.REFUSED)]] = True
    found = np.zeros(len(records), bool)
    found[places] = bad[call]
    return found


def unheard_sums(pe: Pe, records: Any) -> dict[int, int | None]:
    """What those updates have added to each word; None: they did something else."""
    words = records["words"][unheard(pe, records)]
    made: dict[int, int | None] = {}
    for address in np.unique(words[:, 0]).tolist():
        here = words[words[:, 0] == address]
        made[address] = int(here[:, 2].sum()) if (here[:, 1] & 0xFF == ADD).all() else None
    return made


def unheard(pe: Pe, records: Any) -> Any:
    """Which records are updates of words that nobody looks at: counters of the PE's own."""
    updates = records["kind"] == log.UPDATE
    addresses, used = records["words"][:, 0], records["words"][:, 1] >> 8 != 0
    unheard = updates & ~np.isin(addresses, addresses[updates & used])
    for heap, stride, n_pes in pe.heaps:
        unheard &= (addresses < heap - pe.pe * stride) | (
            addresses >= heap + (n_pes - pe.pe) * stride
        )
    return unheard
