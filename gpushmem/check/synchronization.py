"""The words that PEs and threads look at: what they hear there, and the locks among them."""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import accumulate, chain
from typing import Any, NamedTuple

import numpy as np

from gpushmem.check.accesses import SHARED_MEMORY, other_pe
from gpushmem.check.calls import Call, Change, Extent
from gpushmem.check.conditions import CHANGES, Write, changed
from gpushmem.check.launches import OF_BLOCK, OF_GPU, OF_SYSTEM, Taken
from gpushmem.check.log import HOST, VALUE, Record, as_records
from gpushmem.check.pe_memory import Pe, unheard_sums
from gpushmem.check.reads_from import Heard, Replaced, Word
from gpushmem.check.vector_clock import CALLED, EARLIER, UNITS, UPDATED, Bit, Clock
from gpushmem.ops import CMP_EQ, SIGNAL_ADD
from gpushmem.ops.row import DATA, READS, SIGNAL, UPDATES
from gpushmem.simt.observe import ADD, AND, CAS, OR, OTHER, STORE, XOR

__all__ = ["HOW", "Lock", "Outcome", "Section", "Update", "Waits"]

HOW = {ADD: "add", OR: "or", AND: "and", XOR: "xor"}  # others set the word
SETS = "set", "swap", "compare_swap", "p"
GIVERS = 256  # of the writes that may give a lock back, so many are looked at
INTEGER, TRUTH = 0, 1  # what a result is
# Ends of names: one word is enough.
ANY, SOME = ("_any", "_any_vector"), ("_some", "_some_vector")
ONE_OF_SEVERAL = ANY + SOME


class Update(NamedTuple):
    """A change of a word that others look at, but by an operation: plain, atomic, by a host."""

    what: str
    site: str
    clock: Clock  # what its thread knew, fenced or not
    pe: int
    launch: int
    thread: int
    when: int  # the thread's clock

    def place(self) -> tuple[Any, ...]:
        """As of a call."""
        return self.site, self.pe, self.launch, self.thread, self.when

    def who(self) -> tuple[int, int, int]:
        """As of a call."""
        return self.pe, self.launch, self.thread


class Held(NamedTuple):
    """Bits of a word, as they were before somebody changed all of them, and saw it."""

    mask: int
    value: int
    made: int  # what they have become

    def are(self, number: int | None) -> bool:
        """Whether they are as before in a number."""
        return number is not None and number & self.mask == self.value & self.mask

    def are_again(self, write: Write) -> bool:
        """Whether a write makes of them what they were."""
        if write.value is None:
            return False
        set_to = write.value & self.mask
        if write.how == "set":
            return set_to == self.value & self.mask
        if write.how == "add":
            return self.mask == -1 and self.made + write.value == self.value
        changed = set_to == self.mask
        return {"and": set_to == 0 == self.value, "or": changed and self.value == self.mask,
                "xor": changed and self.mask != -1}.get(write.how, False)  # fmt: skip


def _changed(how: str, old: int, value: int | None) -> Held | None:
    """The bits that a lock may have which an operation has taken; None if it has changed none."""
    if value is None or how == "xor":
        return None
    if how == "set":
        return Held(-1, old, value) if old != value else None
    mask = value if how == "or" else ~value
    free = 0 if how == "or" else mask
    return Held(mask, free, mask - free) if mask and old & mask == free else None


class Store(NamedTuple):
    """A plain store to a word that others look at; what a clock has that knows it."""

    pe: Pe
    launch: int
    thread: int
    when: int
    where: Any

    @property
    def away(self) -> int | None:
        """The PE that it is to, if it is another one."""
        return other_pe(self.where[0], self.pe.pe)

    def clock(self) -> tuple[Clock, int]:
        """What its thread knew, and since which stamp."""
        launch = self.pe.launches[self.launch]
        clock, stamp = launch.at(self.thread, self.when)
        return clock.copy(), stamp

    def known(self, clock: Clock) -> bool:
        """Whether a clock knows that it is over."""
        launch = self.pe.launches.get(self.launch)
        return launch is not None and launch.over(self.thread, self.when, clock, self.away)

    def tell(self, clock: Clock) -> None:
        """Nothing: a clock that had it would have all that was done since the event before."""


class Outcome(NamedTuple):
    """What words are after a part of a job."""

    words: dict[Any, int | None]  # their numbers, but for 0; None: it is not known
    locks: dict[Any, Held]  # that are taken: by word, and which bits of it


class Section(NamedTuple):
    """From where somebody has taken a lock to where it is given back."""

    since: int  # a stamp
    taken: Bit
    back: Write | None  # None: it is not given back any more
    until: int
    bits: Held


class Lock:
    """A lock: who had it, and when."""

    def __init__(self, sections: list[Section]) -> None:
        self._sections = sorted(sections, key=lambda section: section.since)
        self._since = [section.since for section in self._sections]
        self._until = [*accumulate((section.until for section in self._sections), max)]

    def around(self, stamp: int) -> Iterator[Section]:
        """The sections that begin before a stamp and end after it."""
        k = bisect_right(self._since, stamp) - 1
        while k >= 0 and self._until[k] >= stamp:
            if self._sections[k].until >= stamp:
                yield self._sections[k]
            k -= 1


class _Words(dict[Any, Word]):
    """The words that somebody looks at, as they were before."""

    def __init__(self, exact: bool, before: dict[Any, int | None]) -> None:
        self._exact, self._before = exact, before

    def __missing__(self, where: Any) -> Word:
        number = self._before.get(where, 0)
        by = Update("what was before", "?", Clock(), 0, 0, 0, 0)
        earlier = Write(EARLIER, "set", number, by.clock, by, -1) if number != 0 else None
        self[where] = word = Word(self._exact, earlier)
        return word


class _Stored(NamedTuple):
    """Memory to which somebody has stored, and what; None: that is not known."""

    space: Any
    start: int
    end: int
    value: int | None
    again: bool = False  # it is what the store before it has stored


def _stored(pe: Pe) -> Iterator[_Stored]:
    """What a PE's kernels and its host have stored."""
    rows = pe.plain[pe.plain["how"] == STORE]
    names = ["space", "low", "end", "valued", "value"]
    for number, low, end, valued, value in np.unique(rows[names]).tolist():
        if number != SHARED_MEMORY:
            yield _Stored(pe.space(number, 0), low, end, value if valued else None)
    kinds = pe.trace.records["kind"]
    for record in as_records(pe.trace.records[(kinds == HOST) | (kinds == VALUE)]):
        address, nbytes, how, stride, times, _ = record.words
        space, start = pe.place(address, 0)
        if record.kind == VALUE:
            yield _Stored(space, start, start + nbytes, how, again=True)
        elif how == STORE:
            yield _Stored(space, start, start + stride * (times - 1) + nbytes, None)


def _looked_at(call: Call, n: int, result: int) -> Iterable[int]:
    """Which of the `n` words of a wait, or a test, its result is about."""
    _, status, some = call.contents
    if call.op.base.endswith(ANY):
        return range(result, result + 1) if result >= 0 else ()
    if call.op.base.endswith(SOME):
        return some.values() if result else ()
    return [k for k in range(n) if not status.get(k)]


def _places(pe: Pe, call: Call, one: Extent, result: int) -> list[tuple[int, Any]]:
    """Those words: their numbers, and places."""
    return [
        (k, pe.place(one.address + k * one.item, call.record.launch))
        for k in _looked_at(call, one.size // one.item, result)
    ]


class Waits:
    """The words, and what was heard of their writes."""

    def __init__(self, exact: bool, before: Outcome) -> None:
        self._before = before
        self.words = _Words(exact, before.words)
        self._totals: dict[Any, tuple[int | None, Any]] = {}  # words that nobody looks at
        self.heard: dict[Any, Heard] = {}  # by each wait
        # Whether a read orders what it has seen in this run, not only what it must have seen: for
        # those who look at every other order, too.
        self.exact = exact
        self.hears = False  # whether waits order anything yet
        self.ends: list[int] = []  # of what is put as units: see `ends_of_units`
        self.locks: list[Lock] = []
        self._sections: dict[Any, list[Section]] = {}  # by word, and which bits of it
        # Waits, the index and place of the word, and what may keep it from ending.
        self.missed: list[tuple[Call, int, Any, Replaced]] = []
        # ... and, of a wait for a flag, the write of the same flag that it may take for another.
        self.confused: list[tuple[Call, int, Any, Write]] = []
        # ... and the write of another block that it is for, which may not run at the same time.
        self.not_resident: list[tuple[Call | Update, int, Any, Write]] = []

    def begin(self, stores: Iterable[tuple[Any, Store, int, str]], *, last: bool) -> None:
        """Before the log is gone through; `stores`, as they were when it was the last time."""
        self._last = last
        self.missed, self.confused, self.not_resident = [], [], []
        for word in self.words.values():
            word.begin()
        for where, store, value, site in stores:
            self._store(where, store, value, site)
        self._places = self._by_space()
        self._totals = {}
        # Words that somebody changed who saw what they were: what knows of it, and what it saw.
        self.taken: dict[Any, list[tuple[Bit, Held]]] = defaultdict(list)
        for (where, _), bits in self._before.locks.items():
            if where in self.words and EARLIER in self.words[where].writes:
                self.taken[where].append((EARLIER, bits))
        self.relaxed: dict[Bit, Taken] = {}  # of these, those that have to fence then
        self._counted: dict[Any, bool] = {}
        self._updates: dict[Any, dict[Any, Bit]] = {}  # of a word: by thread and clock
        self.__dict__.pop("_heard_by", None)

    def _store(self, where: Any, store: Store, value: int, site: str) -> None:
        clock, stamp = store.clock()
        if store.away is not None:
            clock.before_writes_to(store.pe.pe, store.away)
        by = Update("store", site, clock, store.pe.pe, store.launch, store.thread, store.when)
        self.words[where].put(Write(store, "set", value, clock, by, stamp))

    def _by_space(self) -> dict[Any, list[int]]:
        """Where the words are that there are so far, in order."""
        places: dict[Any, list[int]] = defaultdict(list)
        for space, start in sorted(self.words, key=lambda where: where[1]):
            places[space].append(start)
        return places

    def stores(self, pes: Iterable[Pe]) -> list[tuple[Any, Store, int, str]]:
        """Plain stores to what others look at: the word, the store, the value, and its line."""
        words, found = self._by_space(), []
        for pe in pes:
            rows = pe.plain
            for number in np.unique(rows["space"]).tolist():
                if number == SHARED_MEMORY:
                    continue
                space = pe.space(number, 0)
                low, end = (np.searchsorted(words[space], rows[k]) for k in ("low", "end"))
                here = (rows["space"] == number) & (rows["valued"] != 0) & (low < end)
                for row, first, last in zip(rows[here], low[here], end[here], strict=True):
                    launch, when, value = (int(row[k]) for k in ("launch", "clock", "value"))
                    site = pe.sites.get(int(row["site"]), "?")
                    for word in words[space][first:last]:
                        for thread in _threads(row, word):
                            store = Store(pe, launch, thread, when, (space, word))
                            found.append(((space, word), store, value, site))
        return found

    def find_locks(self) -> None:
        """When the log has been gone through, for the next time."""
        takers: dict[Any, list[tuple[Bit, Held]]] = defaultdict(list)
        for where, taken in self.taken.items():
            for over, bits in taken:
                takers[where, bits.mask].append((over, bits))
        self._sections = {
            (where, mask): self._sections_of(where, takers[where, mask]) for where, mask in takers
        }
        self.locks = [Lock(sections) for sections in self._sections.values() if sections]

    def _sections_of(self, where: Any, takers: list[tuple[Bit, Held]]) -> list[Section]:
        """From where bits are changed, by who saw what they were, to where they are that again.

        The last one may go on, or end when all is over.
        """
        writes, sections = self.words[where].writes, []
        ordered = sorted(writes.values(), key=lambda write: write.stamp)
        for taken, bits in takers:
            since = writes[taken].stamp
            first = bisect_left(ordered, since, key=lambda write: write.stamp)
            near = (w for w in ordered[first : first + GIVERS] if w.over != taken)
            given = (w for w in near if bits.are_again(w))
            back = next((w for w in given if taken.known(w.clock)), None)
            if back is not None or taken == takers[-1][0]:
                until = sys.maxsize if back is None else back.stamp
                sections.append(Section(since, taken, back, until, bits))
        return sections

    def held(self, taken: Bit, clock: Clock, scope: int) -> bool:
        """Whether what has a clock comes after a lock was taken, fenced for threads of a scope."""
        by = self.relaxed.get(taken)
        return taken.known(clock) if by is None else by.held(clock, scope)

    def seen_by(self, where: Any, who: tuple[int, int, int], when: int) -> Iterable[Update]:
        """The atomic operations on a word that have seen one: of a thread, when it had this clock.

        All that come after these come after that, too: PTX ISA, "Causality Order".
        """
        if where not in self.words:
            return
        writes = self.words[where].writes
        if where not in self._updates:
            self._updates[where] = {
                (w.call.who(), w.call.when): over
                for over, w in writes.items() if isinstance(w.call, Update)
            }  # fmt: skip
        step = self._updates[where].get((who, when + 1))
        for other in self._heard_by.get(step, ()):
            if other in writes:
                yield writes[other].call

    @cached_property
    def _heard_by(self) -> dict[Any, list[Bit]]:
        """Of each write the atomic operations of numba.cuda that have heard of it."""
        found: dict[Any, list[Bit]] = defaultdict(list)
        for (who, _), heard in self.heard.items():
            for over in heard.writes if who.kind == UPDATED else ():
                found[over].append(who)
        return found

    # --- what is heard

    def _hear(
        self, where: Any, who: Bit, index: int, clock: Clock, compare: int, value: int, block: Any,
        stamp: int, *, reads: bool,
    ) -> list[Write]:  # fmt: skip
        """Let a clock know what was seen, and return it; `reads`: by what is no wait."""
        word = self.words[where]
        if not self.hears:
            return []
        if word.is_long or (word.as_seen and reads):
            heard = word.read(clock, stamp, block)
        else:
            heard = word.hear(who, clock, compare, value, block)
        self.heard[who, index] = heard
        return [word.writes[over] for over in heard.writes]

    def hear(
        self, pe: Pe, call: Call, clock: Clock, words: list[int], stamp: int, looks: bool
    ) -> None:
        """What a wait, or a test, that has returned lets its caller know.

        `looks`: the program looks at the value that a wait returns.
        """
        op, result, truth = call.op, words[1], words[2]
        if op.base.startswith("atomic_") and op.returns.dtype is not None and words[2] == INTEGER:
            self._fetch(pe, call, clock, result, stamp)
            return
        looked = [e for e in call.effects if e.effect.how == READS and e.effect.kind != DATA]
        if not looked or op.base.startswith("atomic_"):
            return
        compare, value, values = call.compare, call.value, call.contents[0]
        if op.base == "signal_fetch":
            compare, value = CMP_EQ, result
        kind, places = UNITS, self.units(pe, call)
        if call.units is None:
            kind, places = CALLED, _places(pe, call, looked[0], result)
        for index, where in places:
            # Who knows this of the wait, comes after it.
            call.mark(clock, kind)
            who, expected = call.over(kind), values.get(index, value)
            if self._last and call.units is not None:
                same = self.words[where].confused(who, clock, expected)
                self.confused += [] if same is None else [(call, index, where, same)]
            if self._last and op.waits and not op.base.endswith(ONE_OF_SEVERAL):
                replaced = self.words[where].replaced(who, clock, compare, expected)
                if replaced is not None:
                    self.missed.append((call, index, where, replaced))
            if self._last and op.waits:
                self._needs_others(pe, call, index, where, clock, (who, index))
            if not result and truth == TRUTH:  # it gave up
                continue
            waits = op.waits
            if waits and looks and truth == INTEGER:
                waits, compare, expected = False, CMP_EQ, result
            block = pe.block_of(call.who())
            self._hear(where, who, index, clock, compare, expected, block, stamp, reads=not waits)

    def units(self, pe: Pe, call: Call, space: Any = None) -> list[tuple[int, Any]]:
        """Of the units of a call those that stand for all: their numbers, and places.

        In this PE's memory, or in another one.
        """
        one, found = call.units, []
        if one is None:
            return []
        here, start = pe.place(one.address, call.record.launch)
        for k in range(one.times):
            first = start + k * one.stride
            low, high = (bisect_left(self.ends, end) for end in (first, first + one.size))
            found += [((at - start) // one.item, (space or here, at)) for at in self.ends[low:high]]
        return found

    def put_units(self, pe: Pe, call: Call, space: Any, clock: Clock) -> None:
        """What a call puts tells who waits for it of other units, and of changes of words alone.

        It comes after all that its thread knows: memory may have held signals before.
        """
        relaxed = {key: mask for key, mask in clock.masks.items() if key[0] in (UNITS, UPDATED)}
        call.update = Change(call.over(UNITS), "set", call.value)
        write = Write(*call.update, clock, call, call.stamp, tells=Clock(masks=relaxed))
        for _, where in self.units(pe, call, space):
            self.words[where].put(write)

    def _needs_others(
        self, pe: Pe, call: Call | Update, index: int, where: Any, clock: Clock, heard: Any
    ) -> None:
        """Note the writes a wait has heard of blocks of the same launch that may not have begun."""
        _, number, thread = call.who()
        launch = pe.launches.get(number)
        if launch is None or launch.resident or heard not in self.heard:
            return
        for over in self.heard[heard].writes:
            write = self.words[where].writes[over]
            *by, other = write.call.who()
            block = other // launch.threads
            others = by == [pe.pe, number] and block != thread // launch.threads
            if others and not launch.has_begun(block, clock):
                self.not_resident.append((call, index, where, write))

    def _fetch(self, pe: Pe, call: Call, clock: Clock, old: int, stamp: int) -> None:
        """What an atomic operation, which saw this, lets its caller know."""
        block, who = pe.block_of(call.who()), call.over(CALLED)
        self._hear(call.word, who, 0, clock, CMP_EQ, old, block, stamp, reads=True)
        word, change = self.words[call.word], call.op.base.removeprefix("atomic_")
        if call.update is None or change not in ("compare_swap", "swap", "fetch_or", "fetch_and"):
            return
        if change == "compare_swap":
            swap, call.swap = call.swap, None
            if old != call.compare:
                return
            if swap is not None:
                word.put(swap)
        bits = _changed(call.update.how, old, call.value)
        if bits is not None and not word.is_long:
            self.taken[call.word].append((call.update.over, bits))

    def _is_counted(self, where: Any) -> bool:
        """Whether a word is no set of bits: one that loops wait for may not be all of its value."""
        if where not in self._counted:
            writes = self.words[where].writes.values()
            self._counted[where] = all(write.how in ("set", "add") for write in writes)
        return self._counted[where]

    # --- what is written

    def wrote(self, where: Any, nbytes: int, write: Write) -> None:
        """Something is written to memory where there may be words."""
        space, start = where
        places = self._places[space]
        for k in range(bisect_left(places, start), bisect_left(places, start + nbytes)):
            word = self.words[space, places[k]]
            # The first 0 changes nothing.
            if write.value != 0 or any(w.stamp < write.stamp for w in word.writes.values()):
                word.put(write)

    def write(
        self, call: Call, effect: Any, where: Any, clock: Clock, over: Bit, looked_at: bool
    ) -> None:
        """What a call writes to a word, which somebody looks at or not."""
        how = "set"
        value: int | None = call.value  # None: it may be anything
        if effect.kind == SIGNAL:
            how = "add" if call.compare == SIGNAL_ADD else "set"
        else:
            what = call.op.base.removeprefix("atomic_").removeprefix("fetch_")
            if what == "inc":
                what, value = "add", 1
            if what in CHANGES:
                how = what
            elif what not in SETS:
                value = None
        if effect.how == UPDATES and looked_at:
            clock = clock.copy()
            call.mark(clock, CALLED)
        goes_on = how in CHANGES or call.op.returns.dtype is not None
        call.update = Change(over, how, value)
        write = Write(*call.update, clock, call, call.stamp, goes_on)
        if looked_at and call.op.base == "atomic_compare_swap":
            call.swap = write
        elif looked_at:
            self.words[where].put(write)
        else:
            self._sum_up(where, write)

    def _sum_up(self, where: Any, write: Write) -> None:
        """What a word that nobody looks at is now: somebody may look later."""
        number, by = self._totals.get(where, (self._before.words.get(where, 0), None))
        who = write.call.who()
        if write.how == "set":
            sure = by in (None, who) or write.value == number
            number, by = write.value if sure else None, who
        else:
            number = changed(number, write.how, write.value)
        self._totals[where] = number, by

    def outcome(self, pes: Iterable[Pe]) -> Outcome:
        """What words are at the end."""
        made = self._before.words | {where: number for where, (number, _) in self._totals.items()}
        summed = set(self._totals)
        for pe in pes:
            for address, added in unheard_sums(pe, pe.trace.records).items():
                where = pe.place(address, 0)
                summed.add(where)
                before = made.get(where, 0)
                made[where] = None if added is None or before is None else before + added
        # What is stored in other ways to words that nobody looks at.
        unseen = [where for where in made if where not in self.words]
        stored: dict[Any, list[int | None]] = defaultdict(list)
        for one in chain.from_iterable(map(_stored, pes)) if unseen else ():
            for where in [w for w in unseen if w[0] == one.space and one.start <= w[1] < one.end]:
                stored[where][len(stored[where]) - one.again :] = [one.value]
        for where, values in stored.items():
            same = where not in summed and values.count(values[0]) == len(values)
            made[where] = values[0] if same else None
        made |= {where: word.number() for where, word in self.words.items()}
        self.find_locks()
        last = {key: some[-1] for key, some in self._sections.items() if some}
        kept = {
            key: bits for key, bits in self._before.locks.items() if not bits.are(made.get(key[0]))
        }
        taken = {key: one.bits for key, one in last.items() if one.back is None}
        words = {where: number for where, number in made.items() if number != 0}
        return Outcome(words, {k: bits for k, bits in kept.items() if k not in last} | taken)

    def update(self, pe: Pe, record: Record, words: list[int], clock: Clock) -> Bit:
        """An atomic operation of numba.cuda; returns what a clock has that knows it."""
        address, as_called, operand, expected, old, _ = words
        what, used = as_called & 0xFF, bool(as_called >> 8)
        launch, thread = pe.launches[record.launch], record.thread
        where = pe.place(address, launch.number)
        step = Bit(UPDATED, pe.pe, launch.number, launch.updates)
        launch.updates += 1
        launch.first_updates.setdefault(thread, step)
        site, when, stamp = pe.site_of(record), record.clock, record.stamp
        looks = used and (what, operand) in ((ADD, 0), (OR, 0), (XOR, 0), (AND, -1))
        look = (site, where, what) if looks or (what == CAS and operand == expected) else None
        again = look is not None and launch.looked.get(thread) == (look, when - 1)
        launch.looked[thread] = look, when
        if self._last and again and self._is_counted(where):
            by = Update("loop", site, clock, pe.pe, launch.number, thread, when)
            self._needs_others(pe, by, 0, where, clock, (step, 0))
        block = pe.block_of((pe.pe, launch.number, thread))
        if used:
            before = clock.times.copy() if self.hears else {}
            writes = self._hear(where, step, 0, clock, CMP_EQ, old, block, stamp, reads=True)
            me = pe.pe, launch.number, thread
            seen = [(pe.scope(me, w.call.who()), w.told(block)) for w in writes]
            launch.saw(thread, before, seen, site)
        if what != CAS or old == expected:
            # Relaxed: others that see it know only what was fenced before.
            target = other_pe(where[0], pe.pe)
            scope = OF_GPU if target is None else OF_SYSTEM
            known, near = (
                launch.released.get((thread, for_whom), launch.begun).copy()
                for for_whom in (scope, OF_BLOCK)
            )
            if target is not None:
                known.before_writes_to(pe.pe, target)
            for told in (known, near):
                for key, mask in clock.masks.items():
                    if key[0] == UPDATED:
                        told.know(key, mask)
                step.tell(told)
            value = operand if what != OTHER else None
            by = Update(
                "atomic operation", site, clock.copy(), pe.pe, launch.number, thread, when
            )  # fmt: skip
            how = HOW.get(what, "set")
            write = Write(step, how, value, known, by, stamp, True, block, near)
            self.words[where].put(write)
            bits = _changed(how, old, value) if used and how != "add" else None
            if bits is not None and not self.words[where].is_long:
                self.taken[where].append((step, bits))
                self.relaxed[step] = launch.took(thread, when, site)
        step.tell(clock)
        return step


def _threads(row: Any, word: int) -> Iterable[int]:
    """The threads of a run of stores that store to a word."""
    start, stride, count, thread, step = (
        int(row[k]) for k in ("start", "stride", "count", "thread", "step")
    )
    if stride == 0:
        return range(thread, thread + (count if step else 1)) if word == start else ()
    element, rest = divmod(word - start, stride)
    return () if rest or not 0 <= element < count else (thread + element * step,)
