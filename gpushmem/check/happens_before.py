"""What happens before what: from the logs of all PEs to memory accesses with clocks.

The order is what the program's synchronisation makes, in every run that makes the same calls; not
what this run happened to do. What somebody knows to be over is a `Clock`. Program order, barriers,
launches and meetings are read off the logs. What a wait orders is derived: of the writes to the
word that it waits for, those without which its condition could not have held, whatever the schedule
(`synchronization`). That depends on the order of the writes, so the logs are gone through again
until no wait orders anything new. The order only ever grows, and each part of it holds in every
run; so what is found unordered at the end may happen in any order.

Source: happens-before as in Lamport, "Time, clocks, and the ordering of events in a distributed
system", 1978; complete and incomplete operations as in OpenSHMEM 1.5, sections 3.2 and 9.11.
"""

from __future__ import annotations

import time
from bisect import bisect, bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain, product
from typing import Any

import numpy as np

from gpushmem.artifacts.gpu_model import LANES
from gpushmem.artifacts.launch_shape import NONBLOCKING
from gpushmem.check import log
from gpushmem.check.accesses import SHARED_MEMORY, Access, other_pe
from gpushmem.check.calls import ROWS, Call, extent, gather, known_to_all, spread, threads_of
from gpushmem.check.conditions import Write
from gpushmem.check.history import Atomic, Divergence, Earlier, History, Observer, Turn
from gpushmem.check.launches import OF_SYSTEM, Launch
from gpushmem.check.log import CALL_OF_WARP, Record, Trace, as_records
from gpushmem.check.mbarriers import Mbarriers
from gpushmem.check.pe_memory import CELL, Pe, ends_of_units, looked_at, refused, unheard
from gpushmem.check.synchronization import HOW, Update
from gpushmem.check.turns import CHANGES_NOTHING, changes_nothing
from gpushmem.check.vector_clock import (
    CALLED,
    DEFAULT_QPS,
    DONE,
    ENDED,
    OUT,
    READ,
    UNITS,
    UPDATED,
    Bit,
    Clock,
)
from gpushmem.ops.roles import FromMembers, ToMembers
from gpushmem.ops.row import BULK, COPY, DATA, READS, RETURN, SIGNAL, WORDS
from gpushmem.progress import watched
from gpushmem.simt.observe import ADD, AND, CAS, OR, OTHER, SET, STORE

__all__ = ["history"]

# Rows that look at words: others' changes of words that nobody looks at are accesses, no more.
LOOKS = [
    number for number, op in enumerate(ROWS)
    if any(effect.kind != DATA for effect in op.facts.effects)
    and (op.waits or op.returns.dtype is not None)
]  # fmt: skip
WITH_UNITS = [
    number for number, op in enumerate(ROWS)
    if any(effect.kind in WORDS for effect in op.facts.effects)
]  # fmt: skip
LATE = COPY, BULK  # completions of copies to shared memory
WAITS = [number for number, op in enumerate(ROWS) if op.waits]
AT_ONCE = 1 << 13  # events that are read together
PASSES = 64  # at most, until waits order nothing new
TURN = {log.DONE: 3, log.UPDATE: 5}  # which word of a record is the number of its turn
OF_UPDATES = {
    CAS: CHANGES_NOTHING["atomic_compare_swap"], SET: CHANGES_NOTHING["atomic_swap"],
    OR: CHANGES_NOTHING["atomic_fetch_or"], AND: CHANGES_NOTHING["atomic_fetch_and"],
    ADD: CHANGES_NOTHING["atomic_fetch_add"],
}  # fmt: skip


def history(
    traces: Iterable[Trace],
    exact: bool = False,
    operations: Observer | None = None,
    earlier: Earlier | None = None,
) -> History:
    """What the logs say, see `History`; `operations` sees the accesses."""
    made = History(traces, exact, earlier)
    _Replay(made, operations or Observer()).run()
    return made


class _Replay:
    """Goes through all events, in an order that agrees with what depended on what."""

    def __init__(self, history: History, operations: Observer) -> None:
        self.history, self.pes, self.waits = history, history.pes, history.waits
        self._operations = operations
        self._plain = _plain(self.pes.values())
        self._began = time.monotonic()
        self._turns = any(
            (pe.trace.records["words"][pe.trace.records["kind"] == kind, word] > 0).any()
            for pe in self.pes.values()
            for kind, word in TURN.items()
        )
        # Stamps of allocations.
        self._since = {pe.pe: [a["since"] for a in pe.arrays] for pe in self.pes.values()}
        self._looked_at, ends = set[int](), set[int]()
        for pe in self.pes.values():
            self._looked_at |= looked_at(pe, pe.trace.records, LOOKS)
            ends |= ends_of_units(pe, pe.trace.records, WITH_UNITS)
        self.waits.ends = sorted(ends)
        self._looked_at |= {end >> CELL for end in ends}
        self._order = self._sorted()

    def _sorted(self) -> Any:
        """The events in order: of each its PE, and which of its records it is."""
        parts = [np.zeros((3, 0), np.int64)]
        for pe in self.pes.values():
            records = pe.trace.records
            left_out = refused(records, WAITS if self._turns else ())
            if not self._turns:
                left_out |= unheard(pe, records)
            places = np.flatnonzero((records["kind"] > log.ACCESS) & ~left_out)
            parts.append(np.stack([records["stamp"][places], np.full(len(places), pe.pe), places]))
        stamps, pes, places = np.concatenate(parts, axis=1)
        return np.stack([pes, places])[:, np.lexsort((places, pes, stamps))]

    def _events(self) -> Iterator[tuple[Pe, Record]]:
        """The events in order."""
        for first in range(0, self._order.shape[1], AT_ONCE):
            pes, places = self._order[:, first : first + AT_ONCE]
            read = {}
            for pe in np.unique(pes).tolist():
                read[pe] = as_records(self.pes[pe].trace.records[places[pes == pe]])
            for pe in pes.tolist():
                yield self.pes[pe], next(read[pe])

    def run(self) -> None:
        """Go through all events, until waits order nothing new, and collect the accesses.

        The first time waits order nothing, but all writes become known, also those that come later.
        Where nobody looks at a word, there is nothing to learn. Which time is the last one is not
        known before: what was collected is thrown away if waits have ordered more.
        """
        if not self._looked_at:
            self._pass(collect=True)
            return
        self._pass(collect=False)
        self.waits.hears, stores = True, self.waits.stores(self.pes.values())
        for k in range(PASSES):
            before = dict(self.waits.heard)
            if k > 0:
                self.waits.find_locks()
            self._pass(stores, collect=k > 0)
            if k > 0 and self.waits.heard == before:
                return
        self.history.passes = PASSES

    def _pass(self, stores: Iterable[Any] = (), *, collect: bool) -> None:
        self.waits.begin(stores, last=collect)
        for pe in self.pes.values():
            pe.reset()
        self.meetings: dict[Any, dict[int, Clock]] = defaultdict(dict)
        self._sent: dict[Any, Clock] = {}  # messages between hosts
        # Of each thread the groups of asynchronous copies, the last one open; of each launch those
        # in bulk.
        self._copies: dict[Any, list[list[Call]]] = defaultdict(lambda: [[]])
        self._mbarriers = Mbarriers()
        self._collect = collect
        if collect:
            self.history.forget()
            self._operations.begin()
            self._repeated: set[Any] = set()  # what says of an access that it is made again
        n = self._order.shape[1]
        for pe, record in watched("checking: events", self._events(), n, self._began):
            HANDLERS[record.kind](self, pe, record, record.words)
        for pe in self.pes.values() if collect and self._turns else ():
            for call in pe.current.values():
                if call.op.waits and call.known is not None:
                    self.history.waiting.append(_turn_of(call, 0))

    def _add(self, access: Access) -> None:
        if self._collect:
            self._operations.see(self.history, access)
            if self._is_new(access):
                self.history.accesses.append(access)

    def _is_new(self, access: Access) -> bool:
        """Whether an access says more than those that its thread has made to the same memory.

        An array that is allocated later at the same place is other memory.
        """
        kind, owner = access.space[:2]
        arrays = bisect(self._since[owner], access.stamp) if kind == "heap" else 0
        made = access._replace(when=0, call=None, over=None, clock=None, stamp=arrays)
        if made not in self._repeated:
            self._repeated.add(made)
            return True
        if access.op is not None and access.op.facts.completion in LATE:
            return True  # each is complete at another time
        lows, ends = self._plain.get(access.space, ((), ()))
        near = bisect(ends, access.low) < bisect_left(lows, access.end)
        if near or access.low >> CELL not in self._looked_at:
            return near
        word = self.waits.words.get((access.space, access.low))
        return word is None or not word.is_long

    def _keep(self, pe: Pe, record: Record) -> None:
        launch = record.launch
        if launch:
            pe.launches[launch].keep(record.thread, record.clock, record.stamp)

    def _who(self, record: Record) -> Any:
        return record.launch, record.thread

    # --- launches and the host

    def _submit(self, pe: Pe, record: Record, words: list[int]) -> None:
        number, threads, stream, live, resident = words[:5]
        clock = pe.event(record)
        times = pe.times_of(number)
        pe.launches[number] = launch = Launch(pe.pe, number, threads, stream, clock.copy(), times)
        launch.site, launch.live, launch.resident = pe.site_of(record), live, bool(resident)

    def _begin(self, pe: Pe, record: Record, words: list[int]) -> None:
        launch = pe.launches[record.launch]
        launch.begun, launch.stamp = launch.submitted.copy(), record.stamp
        for other in pe.ended_before(launch.number, launch.begun):
            # The default stream, 0, waits for all others, and they for it, but for nonblocking
            # ones; -1 is none of them.
            streams = {launch.stream, other.stream}
            blocking = max(streams) < NONBLOCKING
            if -1 not in streams and (len(streams) == 1 or (0 in streams and blocking)):
                launch.begun.join(other.ended or Clock())
        launch.begun.forget_threads()

    def _end(self, pe: Pe, record: Record, words: list[int]) -> None:
        launch = pe.launches[record.launch]
        launch.ended = launch.begun.copy()
        for block in launch.blocks.values():
            launch.ended.join(block.clocks[-1])
            for clock in block.own.values():
                launch.ended.join(clock)
        for who in [who for who in self._copies if who[:2] == (pe.pe, launch.number)]:
            for copy in chain(*self._copies.pop(who)):
                copy.mark(launch.ended, DONE)
        launch.ended.put((ENDED, pe.pe, 0), launch.number)
        pe.ended = pe.ended.plus(launch.number)
        launch.ended.forget_threads()

    def _sync(self, pe: Pe, record: Record, words: list[int]) -> None:
        clock = pe.event(record)
        before, one, stream = words[:3]
        for launch in pe.ended_before(max(pe.launches, default=0) + 1, clock):
            waited = launch.number == one or (launch.number < before and launch.stream >= 0)
            if waited or (stream != 0 and launch.stream == stream):
                clock.join(launch.ended or Clock())
        clock.forget_threads()

    def _call(self, pe: Pe, record: Record, words: list[int]) -> None:
        clock = pe.event(record)
        if words[0] == 0:
            clock.complete(pe.pe)
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

    def _host(self, pe: Pe, record: Record, words: list[int]) -> None:
        access = self._by_host(pe, record, words)
        self._add(access)
        if access.writes:
            pe.writes += 1
            address, nbytes, _, stride, times, _ = words
            parts = [address + k * stride for k in range(times)]
            self._host_wrote(pe, record, parts, nbytes, None)

    def _exposed(self, pe: Pe, record: Record, words: list[int]) -> None:
        access = self._by_host(pe, record, words)
        if self._collect:
            self.history.exposed.append(access)

    def _by_host(self, pe: Pe, record: Record, words: list[int]) -> Access:
        clock, launch = pe.event(record), record.launch  # of a copy that it has queued
        when = record.clock if launch else pe.time
        address, nbytes, how, stride, times = words[:5]
        space, start = pe.place(address, 0)
        return Access(
            space, start, nbytes, stride, times, how == STORE, False, pe.pe, launch, 0, 0, when,
            pe.site_of(record), None, None, None, clock.copy(), record.stamp,
        )  # fmt: skip

    def _value(self, pe: Pe, record: Record, words: list[int]) -> None:
        address, nbytes, value = words[:3]
        self._host_wrote(pe, record, [address], nbytes, value)

    def _host_wrote(
        self, pe: Pe, record: Record, parts: list[int], nbytes: int, value: int | None
    ) -> None:
        """The host has written to memory where there may be words that PEs wait for."""
        over, launch = Bit(UPDATED, pe.pe, 0, pe.writes), record.launch
        clock = pe.launches[launch].clock(0) if launch else pe.host
        over.tell(clock)
        when = record.clock if launch else pe.time
        by = Update("host's write", pe.site_of(record), clock.copy(), pe.pe, launch, 0, when)
        write = Write(over, "set", value, by.clock, by, record.stamp)
        for address in parts:
            self.waits.wrote(pe.place(address, 0), nbytes, write)

    def _message(self, pe: Pe, record: Record, words: list[int]) -> None:
        clock, message = pe.event(record), tuple(words[1:])
        if words[0] == 0:
            self._sent[message] = clock.copy()
        elif message in self._sent:
            clock.join(self._sent[message])

    def _team(self, pe: Pe, record: Record, words: list[int]) -> None:
        pe.teams[words[0]] = pe.members[words[1]]

    # --- atomic operations of numba.cuda

    def _update(self, pe: Pe, record: Record, words: list[int]) -> None:
        clock = pe.event(record)
        before = clock.copy() if words[TURN[log.UPDATE]] and self._collect else None
        over = self.waits.update(pe, record, words, clock)
        self._keep(pe, record)
        if before is not None:
            self.history.turns.append(_turn_of_update(pe, record, words, over, before))

    def _threadfence(self, pe: Pe, record: Record, words: list[int]) -> None:
        clock = pe.event(record)
        scope, thread = words[0], record.thread
        if scope == OF_SYSTEM:
            clock.stores_are(OUT, pe.pe)
        launch = pe.launches[record.launch]
        launch.release([thread], clock.copy(), scope)
        launch.acquire(range(thread, thread + 1), record.clock, scope)
        self._keep(pe, record)

    # --- barriers of kernels

    def _met(self, pe: Pe, record: Record, words: list[int]) -> None:
        launch = pe.launches[record.launch]
        number, phase = words[:2]
        block = launch.block(number)
        clock = block.clocks[-1].copy()
        for own in block.own.values():
            clock.join(own)
        threads = range(number * launch.threads, (number + 1) * launch.threads)
        launch.acquire(threads, record.clock)
        block.own = {}
        for key in [k for k in clock.times if k[:2] == (pe.pe, launch.number) and len(k) == 3]:
            if key[2] // launch.threads == number:
                del clock.times[key]  # it follows from the meeting
        clock.times[pe.pe, launch.number, "block", number] = phase
        block.met(phase, clock, record.stamp)
        block.barriers.append(phase)

    def _diverged(self, pe: Pe, record: Record, words: list[int]) -> None:
        """A block has met at two barriers."""
        if self._collect:
            one, two = pe.sites.get(words[0], "?"), pe.site_of(record)
            launch, thread = record.launch, record.thread
            self.history.divergences.append(
                Divergence(pe.pe, launch, (words[1], one), (thread, two))
            )

    def _arrived(self, pe: Pe, record: Record, words: list[int]) -> None:
        clock = pe.event(record)
        launch, thread = pe.launches[record.launch], record.thread
        launch.acquire(range(thread, thread + 1), record.clock)
        self._keep(pe, record)
        group = self._group(launch, thread, words)
        launch.came[group, thread] += 1  # some may be at the next meeting before others have left
        meeting = launch.groups[group, launch.came[group, thread]]
        meeting.clock.join(clock)
        meeting.came[thread] = record.clock

    def _contents(self, pe: Pe, record: Record, words: list[int]) -> None:
        which, index, number = words[:3]
        pe.current[self._who(record)].contents[which][index] = number

    def _left(self, pe: Pe, record: Record, words: list[int]) -> None:
        clock = pe.event(record)
        launch, thread = pe.launches[record.launch], record.thread
        launch.acquire(range(thread, thread + 1), record.clock)
        if words[0] != CALL_OF_WARP:  # of that it knows already, see `spread`
            group = self._group(launch, thread, words)
            meeting = launch.groups[group, launch.came[group, thread]]
            if group == "grid" and not meeting.left:
                launch.met_as_grid(meeting)
            meeting.left = True
            clock.join(meeting.clock)
        self._keep(pe, record)

    def _group(self, launch: Launch, thread: int, words: list[int]) -> Any:
        if words[0]:
            return "grid"
        return "warp", thread // launch.threads, thread % launch.threads // LANES, words[1]

    # --- operations

    def _op(self, pe: Pe, record: Record, words: list[int]) -> None:
        call = Call(pe.pe, ROWS[words[0]], record, pe.site_of(record))
        pe.current[self._who(record)] = call
        if not call.expected:
            self._perform(pe, call)

    def _effect(self, pe: Pe, record: Record, words: list[int]) -> None:
        call = pe.current[self._who(record)]
        call.effects.append(extent(call.op, words))
        call.record = record
        if len(call.effects) == call.expected:
            self._perform(pe, call)

    def _perform(self, pe: Pe, call: Call) -> None:
        """A call begins: what it orders, reads and writes from now on."""
        record, op = call.record, call.op
        clock = pe.event(record)
        if call.pe < 0 and not (op.waits or op.facts.meets):
            call.pe = self._stored_on(pe, call)
            if op.named(ToMembers):
                call.divide(pe.teams.get(call.team, tuple(self.pes)))
        for one in call.each:
            pe.number(one)
        known = clock  # what all who call knew before
        if call.scope and record.launch:
            launch = pe.launches[record.launch]
            known = known_to_all(launch, call, clock)
            gather(launch, call, clock)
        _put_in_order(pe, call, clock)
        self._copy_late(call, clock)
        if op.facts.meets:
            self._arrive(pe, pe.teams.get(call.team), clock)
        if op.facts.orders in ("fence", "quiet", "barrier") and record.launch:
            launch = pe.launches[record.launch]
            thread = record.thread
            threads = range(*threads_of(launch, call, thread))
            launch.release(threads, clock.copy(), OF_SYSTEM)
            launch.acquire(threads, record.clock)
        if call.effects:
            if self._turns and self._collect:
                call.known = clock.copy()
            for one in call.each:
                self._effects(pe, one, known)
                for part in range(one.parts):
                    one.mark(clock, CALLED, part)
            if call.units is not None and not op.waits:
                call.mark(clock, UNITS)
        self._spread(pe, record, call, clock)

    def _copy_late(self, call: Call, clock: Clock) -> None:
        """Note an asynchronous copy, or the end of a group; or know that some are over."""
        facts, who = call.op.facts, call.who()
        if facts.completion in LATE:
            of_group = who if facts.completion == COPY else (*who[:2], BULK)
            self._copies[of_group][-1].append(call)
        elif facts.orders == "commit":
            self._copies[who].append([])
        elif facts.orders == "copies":
            groups = self._copies[who]
            over = max(0, len(groups) - 1 - call.compare)
            for copy in chain(*groups[:over]):
                copy.mark(clock, DONE)
            del groups[:over]

    def _stored_on(self, pe: Pe, call: Call) -> int:
        """The other PE to whose memory a call stores, as through `peer_array`; -1: to none."""
        for one in call.effects:
            if one.effect.how != READS:
                space, _ = pe.place(one.address, call.record.launch)
                other = other_pe(space, pe.pe)
                if other is not None:
                    return other
        return -1

    def _done(self, pe: Pe, record: Record, words: list[int]) -> None:
        """A call has returned."""
        call = pe.current.pop(self._who(record), None)
        clock = pe.event(record)
        if call is None:  # of a barrier that is where the part before ends
            return
        op, facts = call.op, call.op.facts
        if facts.meets:
            self._leave(pe, pe.teams.get(call.team), clock)
        if self._collect and words[TURN[log.DONE]]:
            self._had_turn(pe, call, words)
        looks = op.base == "signal_wait_until" and bool(self.history.looks_at_result(call))
        self.waits.hear(pe, call, clock, words, record.stamp, looks)
        completion = facts.completion
        if call.effects and (completion is None or completion.source == RETURN):
            for one in call.each:
                one.mark(clock, READ)
        fetches = op.returns.dtype is not None
        local = facts.meets or op.waits or (call.each[0].pe < 0 and completion not in LATE)
        returned = completion is not None and completion.data == RETURN
        if call.effects and (local or fetches or returned):
            call.mark(clock, DONE)
        if record.launch and (facts.meets or (op.waits and not call.units) or fetches):
            launch = pe.launches[record.launch]
            threads = range(*threads_of(launch, call, record.thread))
            launch.acquire(threads, record.clock)
        if "bars" in op.arrays:
            (bars,) = (one for one in call.effects if one.effect.array == "bars")
            self._mbarriers.returned(pe.place(bars.address, record.launch), call, clock)
        self._spread(pe, record, call, clock)

    def _had_turn(self, pe: Pe, call: Call, words: list[int]) -> None:
        fetches = call.op.base in ("signal_fetch", "atomic_fetch", "g")
        failed = not fetches and changes_nothing(call.op, words[1], call.compare, call.value)
        self.history.turns.append(_turn_of(call, words[TURN[log.DONE]], failed))

    def _spread(self, pe: Pe, record: Record, call: Call, clock: Clock) -> None:
        launch = pe.launches.get(record.launch)
        if launch is not None:
            spread(launch, call, record, clock)

    def _effects(self, pe: Pe, call: Call, known: Clock) -> None:
        record, launch, op = call.record, call.record.launch, call.op
        reading = arriving = known.copy()
        if call.pe >= 0:
            arriving = reading.copy()
            arriving.before_writes_to(pe.pe, call.pe, call.qp)
        told = arriving
        if any(each.effect.kind == SIGNAL for each in call.effects):
            told = arriving.copy()
            for kind in (CALLED, READ, DONE):
                call.mark(told, kind)
        for effect, address, item, size, stride, times in call.effects:
            role = op.arrays[effect.array]
            space, start = pe.place(address, launch)
            spaces = [space]
            if call.pe >= 0 and role.symmetric and space[0] == "heap" and not op.waits:
                spaces = [("heap", call.pe)]
            elif issubclass(role, FromMembers) and not op.facts.meets:
                members = pe.teams.get(call.team, tuple(self.pes))
                spaces = [("heap", member) for member in members]
            signal = effect.kind == SIGNAL and effect.how != READS
            local_read = effect.how == READS and not (call.pe >= 0 and role.symmetric)
            over = call.over(READ if local_read else DONE, signal)
            atomic = effect.kind != DATA or op.plain in ("p", "g")
            pieces = size, stride, times
            rows = [start]
            if effect.kind in WORDS:
                rows = [start + k * stride for k in range(times)]
                pieces = item, item, size // item
            elif atomic and times == 1:  # word by word
                pieces = item, item, size // item
            now = told if signal else reading if effect.how == READS else arriving
            call.word = spaces[0], start
            if atomic and times:
                call.words.append((*call.word, item, pieces[2], effect.how != READS))
            if effect.how != READS and effect.kind in WORDS:
                self.waits.put_units(pe, call, spaces[0], now)
            elif effect.how != READS and atomic:
                looked_at = start >> CELL in self._looked_at
                self.waits.write(call, effect, call.word, now, over, looked_at)
            for space, first in product(spaces, rows) if times else ():
                self._add(
                    Access(
                        space, first, *pieces, effect.how != READS, atomic, pe.pe,
                        launch, record.thread, 0, record.clock, call.site, op, call,
                        over, now, call.stamp,
                    )
                )  # fmt: skip


def _plain(pes: Iterable[Pe]) -> dict[Any, tuple[list[int], list[int]]]:
    """Where there are plain loads and stores: of each memory where they begin, and end."""
    spans: dict[Any, list[Any]] = defaultdict(list)
    for pe in pes:
        for number in np.unique(pe.plain["space"]).tolist():
            if number != SHARED_MEMORY:
                rows = pe.plain[pe.plain["space"] == number]
                spans[pe.space(number, 0)].append(np.stack([rows["low"], rows["end"]]))
    made = {}
    for space, parts in spans.items():
        low, end = np.concatenate(parts, axis=1)
        order = np.argsort(low)
        low, end = low[order], np.maximum.accumulate(end[order])
        first = np.concatenate([[True], low[1:] > end[:-1]])
        last = np.concatenate([first[1:], [True]])
        made[space] = low[first].tolist(), end[last].tolist()
    return made


def _turn_of(call: Call, number: int, failed: bool = False) -> Turn:
    return Turn(number, call, call.site, call.who(), call.over(CALLED), call.known, failed)


def _turn_of_update(pe: Pe, record: Record, words: list[int], over: Bit, clock: Clock) -> Turn:
    """The turn of an atomic operation of numba.cuda."""
    address, how, operand, expected, old, number = words
    what, launch = how & 0xFF, record.launch
    given = expected if what == CAS else operand
    failed = what in OF_UPDATES and OF_UPDATES[what](old, given)
    value = None if what == OTHER else operand
    where, used = pe.place(address, launch), bool(how >> 8)
    by = Atomic(HOW.get(what, "set"), value, where, used, OF_UPDATES.get(what), given)
    who = pe.pe, launch, record.thread
    return Turn(number, by, pe.site_of(record), who, over, clock, failed)


def _put_in_order(pe: Pe, call: Call, clock: Clock) -> None:
    """What a clock knows after a call that orders or completes others."""
    orders = call.op.facts.orders
    if call.qps is not None:  # operations to one PE, on these queue pairs
        qps, to = call.qps, call.pe

        on = pe.on if orders == "quiet" else pe.fenced

        def of_target(target: int) -> int:
            return on(qps, target) if target == to else 0

        if orders == "quiet":
            clock.complete(pe.pe, of_target)
        else:
            clock.fence(pe.pe, qps, of_target)
    elif orders in ("quiet", "barrier"):
        clock.complete(pe.pe)
    elif orders == "flush":
        clock.know_of_calls(pe.pe, READ)
    elif orders == "fence":
        clock.fence(pe.pe, DEFAULT_QPS, partial(pe.fenced, DEFAULT_QPS))


HANDLERS = {
    log.OP: _Replay._op, log.EFFECT: _Replay._effect, log.DONE: _Replay._done,
    log.MET: _Replay._met, log.ARRIVED: _Replay._arrived, log.LEFT: _Replay._left,
    log.SUBMIT: _Replay._submit, log.BEGIN: _Replay._begin, log.END: _Replay._end,
    log.SYNC: _Replay._sync, log.CALL: _Replay._call, log.TEAM: _Replay._team,
    log.HOST: _Replay._host, log.EXPOSED: _Replay._exposed, log.VALUE: _Replay._value,
    log.CONTENTS: _Replay._contents,
    log.DIVERGED: _Replay._diverged, log.UPDATE: _Replay._update,
    log.THREADFENCE: _Replay._threadfence, log.MESSAGE: _Replay._message,
}  # fmt: skip
