"""Words that PEs wait for: which writes a wait must have seen.

A wait that has returned orders the writes without which its condition cannot have held: there is no
order of the writes, in agreement with what is known of them, in which the word satisfies the
condition and the write is missing (`conditions`). Which writes may come before the wait at all, and
in which order, is what the clocks know so far.

A word has thousands of writes and waits, and a wait is to look at few of them. What earlier waits
knew, and a later one knows, too, is summed up in a `Known`. Of the writes that come after a wait
most are the last ones in the log: the `_Index` tells from where on all do.

Of a word whose writes and waits are too many for that, reads order what they have seen in this run,
as race detectors for threads have it: in time that does not depend on how many writes there are. So
it is with atomic operations that read a word which some add to, and others set by a
compare-and-swap to what they make of it: which of them have been there does not follow from a
number.
"""

from __future__ import annotations

import bisect
import heapq
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any, NamedTuple

from gpushmem.check.conditions import (
    Known,
    Write,
    changed,
    fails,
    first_to_hold,
    holds,
    some_without,
    total,
)
from gpushmem.check.vector_clock import CALLED, DONE, NONE, UNITS, UPDATED, Bit, Bits, Clock, Masks
from gpushmem.ops import CMP_EQ

__all__ = ["Replaced", "Word"]

COMMON = CALLED, DONE, UPDATED, UNITS  # in what all of several writes know
MOST_WRITES = 50_000  # of a word
KNOWN_WORK = 5  # to take note of a write that is known, against that of looking at one
CLOCKS_WORK = 0.4  # the same for each number that the clock of a write has, in an `_Index`
MOST_WORK = 1_000_000  # of a word, in writes that are looked at: about a second
LAYERS = 8  # by how many waits one may be behind others of the same word


class _Index:
    """The writes to a word in the order of the log, and what finds some of them."""

    def __init__(self, writes: Iterable[Write]) -> None:
        ordered = sorted(writes, key=lambda write: write.stamp)
        self.overs = [write.over for write in ordered]
        self.place = {over: k for k, over in enumerate(self.overs)}
        bits: dict[Any, int] = defaultdict(int)
        self.stores = [over for over in self.overs if not isinstance(over, Bit)]
        for over in self.overs:
            if isinstance(over, Bit):
                bits[over[:3]] |= 1 << over.bit
        self.bits: Masks = {key: Bits(0, each) for key, each in bits.items()}  # of all writes
        self.only_set = all(write.how == "set" for write in ordered)
        self._with_value: dict[int | None, list[int]] = defaultdict(list)
        for k, write in enumerate(ordered):
            self._with_value[write.value].append(k)
        self.common = self.told = _common([write.clock for write in ordered])
        if any(write.tells is not None for write in ordered):
            self.told = _common([write.told(None) for write in ordered])
        numbers = sum(len(write.clock.times) + len(write.clock.masks) for write in ordered)
        self.work = len(ordered) + int(CLOCKS_WORK * numbers)

    def agrees(self, write: Write) -> bool:
        """Whether what is said of the writes still holds when this replaces one of them."""
        place = self.place.get(write.over)
        return (
            place is not None
            and write.clock.has_all(self.common[place])
            and write.told(None).has_all(self.told[place])
        )

    def all_after(self, who: Bit) -> int:
        """From which place on all writes come after a wait."""
        key, bit = who[:3], who.bit
        return bisect.bisect_left(
            self.common, True, key=lambda clock: clock.masks.get(key, NONE).has(bit)
        )

    def equal(self, value: int, first: int, end: int) -> Iterator[int]:
        """The places, of those from `first` to `end`, whose writes may set the word to a value."""
        yield from heapq.merge(
            *(
                places[bisect.bisect_left(places, first) : bisect.bisect_left(places, end)]
                for places in (self._with_value.get(value, []), self._with_value.get(None, []))
            )
        )


def _common(clocks: list[Clock]) -> list[Clock]:
    """Of each clock what it and all after it know: threads' times, and masks of some kinds."""
    made: list[Clock] = []
    for clock in reversed(clocks):
        masks = {key: bits for key, bits in clock.masks.items() if key[0] in COMMON}
        times = clock.times
        if made:
            later = made[-1]
            masks = {key: bits & later.masks.get(key, NONE) for key, bits in masks.items()}
            times = {k: min(time, later.times[k]) for k, time in times.items() if k in later.times}
        made.append(Clock(times, {key: bits for key, bits in masks.items() if bits != NONE}))
    return made[::-1]


class Sequence:
    """What a read of a word learns that sees all that was written before it.

    The last write, and those before it up to one that has replaced the word and did not read it:
    the last release, as in C++, and all that its sequence has.
    """

    def __init__(self, *, keeps: bool = False) -> None:
        self._coming: list[tuple[int, int, Write]] = []  # a heap, by stamps
        self._all = Clock()
        self._near: dict[Any, Clock] = {}  # what blocks that have written learn besides
        self._overs: list[Any] | None = [] if keeps else None  # of these writes
        self._stores = 0

    def put(self, write: Write) -> None:
        """One more write; those that come before it may still be put."""
        self._stores += not isinstance(write.over, Bit)
        heapq.heappush(self._coming, (write.stamp, id(write), write))

    def read(self, clock: Clock, stamp: int, block: Any) -> Heard:
        """Let `clock`, of a thread of a block, know all that was written before a stamp."""
        while self._coming and self._coming[0][0] < stamp:
            *_, write = heapq.heappop(self._coming)
            if not write.goes_on:
                self._all, self._near = Clock(), {}
                self._overs = None if self._overs is None else []
            self._all.join(write.told(None))
            write.over.tell(self._all)
            if self._overs is not None:
                self._overs.append(write.over)
            if write.near is not None:
                self._near.setdefault(write.block, Clock()).join(write.near)
        clock.join(self._all)
        if block in self._near:
            clock.join(self._near[block])
        if self._overs is not None:
            return Heard(frozenset(self._overs), self._all.masks.copy(), {})
        # Of stores more is known when the log is gone through again.
        return Heard(frozenset(), self._all.masks.copy(), {}) if self._stores else NOTHING


class Word:
    """One word."""

    def __init__(self, exact: bool = False, earlier: Write | None = None) -> None:
        self.writes: dict[Any, Write] = {} if earlier is None else {earlier.over: earlier}
        self._start = 0 if earlier is None else earlier.value
        self._number = self._start  # after all that was put, in that order
        self._index: _Index | None = None
        self.work = 0  # writes that were looked at, and what else takes as long
        self.is_long = False  # too many: reads order what they have seen
        # Whether operations that are no waits order what they have seen in this run.
        self.as_seen = exact
        self._sequence = Sequence(keeps=exact)
        self._puts = 0  # since the index was made
        self._known: deque[Known] = deque(maxlen=LAYERS)  # each has the writes of the one before

    def begin(self) -> None:
        """Before the log is gone through again."""
        if self.work > MOST_WORK and not self.is_long:
            self.is_long, self.writes, self._index = True, {}, None
            self._known.clear()
        hows = {(write.how, write.goes_on) for write in self.writes.values()}
        self.as_seen |= ("set", True) in hows and any(how == "add" for how, _ in hows)
        keeps = self.as_seen and not self.is_long
        self._sequence, self._number = Sequence(keeps=keeps), self._start

    def put(self, write: Write) -> None:
        """Know a write, or more of it than before."""
        if self.as_seen or self.is_long:
            self._sequence.put(write)
            self._number = changed(self._number, write.how, write.value)
        if self.is_long or len(self.writes) > MOST_WRITES:
            self.work = MOST_WORK + 1
            return
        self._forget(write)
        self.writes[write.over] = write
        self._puts += 1
        # Now and then a new one is made, which knows what the clocks have come to know.
        if self._index and (self._puts > len(self.writes) or not self._index.agrees(write)):
            self._index = None

    def _forget(self, write: Write) -> None:
        """Forget what has been made of a write."""
        while self._known and self._known[-1].has(write.over):
            self._known.pop()

    def hear(self, who: Bit, clock: Clock, compare: int, value: int, block: Any = None) -> Heard:
        """Let `clock` know what a wait, of a thread of a block, that returned must have seen.

        A clock that knows `who` is that of something that comes after the wait.
        """
        if self.work > MOST_WORK:  # this time it is in vain
            return IN_VAIN
        hearing = self._hearing(who, clock)
        seen = frozenset(write.over for write in hearing.needed(compare, value))
        known = hearing.known_by_all(compare, value)
        for over in seen:
            clock.join(self.writes[over].told(block))
            over.tell(clock)
        clock.join(known)
        return Heard(seen, known.masks, known.times)

    def read(self, clock: Clock, stamp: int, block: Any) -> Heard:
        """Let `clock`, of a thread of a block, know the writes before a stamp, see `Sequence`."""
        return self._sequence.read(clock, stamp, block)

    def number(self) -> int | None:
        """What the word is after all writes; None: that is not known."""
        if self.is_long:
            return self._number
        writes = self.writes.values()
        sets = sorted((w for w in writes if w.how == "set"), key=lambda write: write.stamp)
        last = sets[-1:]
        if any(w.value != last[0].value and not last[0].after(w) for w in sets):
            return None
        return total(last, [write for write in writes if write.how != "set"])

    def replaced(self, who: Bit, clock: Clock, compare: int, value: int) -> Replaced | None:
        """The write that may keep a wait from ending, as its condition does not hold after that.

        All that does not come after the wait may have arrived before its PE looks at the word; if
        the condition does not hold then, the wait never ends.
        """
        return None if self.is_long else self._hearing(who, clock).replaced(compare, value)

    def confused(self, who: Bit, clock: Clock, value: int) -> Write | None:
        """A write of a value that a wait for it may take for another one; None: there is none."""
        return None if self.is_long else self._hearing(who, clock).confused(value)

    def _hearing(self, who: Bit, clock: Clock) -> _Hearing:
        if self._index is None:
            self._index, self._puts = _Index(self.writes.values()), 0
            self.work += self._index.work
            self._known.clear()
        return _Hearing(self, self._index, self._known_to(clock), who, clock)

    def _known_to(self, clock: Clock) -> Known:
        """The writes that a clock knows; kept for those who listen later."""
        assert self._index is not None
        while self._known and not self._known[-1].fits(clock):
            self._known.pop()
        known = self._known[-1] if self._known else Known()
        new = list(_those_in(self.writes, self._index.bits, clock.masks, known.bits))
        if new:
            self.work += KNOWN_WORK * len(new)
            known = known.with_more(new)
            self._known.append(known)
        stores = [self.writes[over] for over in self._index.stores if over.known(clock)]
        return known.with_more(stores) if stores else known


def _those_in(
    writes: dict[Any, Write], bits: Masks, masks: Masks, without: Masks
) -> Iterator[Write]:
    """The writes whose bits are in some masks, and not in others."""
    for key, every in bits.items():
        if key in masks:
            for bit in (masks[key] & every).without(without.get(key, NONE)):
                yield writes[Bit._make((*key, bit))]


def _first(writes: list[Write]) -> Write:
    """One of them, the same in every run."""
    return min(writes, key=lambda write: write.call.place())


class Heard(NamedTuple):
    """What a wait has heard."""

    writes: frozenset[Any]  # that it must have seen
    masks: Masks  # of what each of the writes knows of which it must have seen one
    times: dict[Any, int]


NOTHING, IN_VAIN = Heard(frozenset(), {}, {}), Heard(frozenset(), {}, {0: 0})


class Replaced(NamedTuple):
    """A write that may keep a wait from ending."""

    by: Write
    write: Write | None  # that the wait is for, if a write sets the word to that


class _Hearing:
    """A wait, and what is known of a word's writes when it returns."""

    def __init__(self, word: Word, index: _Index, known: Known, who: Bit, clock: Clock) -> None:
        self._word, self._writes, self._index, self._known = word, word.writes, index, known
        self._who, self._clock = who, clock

    def needed(self, compare: int, value: int) -> list[Write]:
        """The writes without which a condition could not have held."""
        if self._index.only_set:
            return self._of_sets(compare, value)
        possible = list(self._possible(self._unknown()))
        needed, left = [], possible
        while left:
            *left, one = left
            self._word.work += len(possible)
            # What is not left has been seen to be unneeded: let it do.
            kept = {write.over for write in left}
            ordered = sorted(possible, key=lambda write: write.over in kept)
            certain = self._known.writes(one, possible)
            enough = some_without(one, certain, ordered, compare, value)
            if enough is None:
                needed.append(one)
            else:
                left = self._before(enough, left)
        return needed

    def _before(self, some: list[Write], writes: list[Write]) -> list[Write]:
        """Those that are among some of them, or come before one of these."""
        overs, clock = {write.over for write in some}, Clock()
        for write in some:
            clock.join(write.clock)
        return [
            w for w in writes
            if w.over in overs or w.over.known(clock) or self._known.came_after(w)
        ]  # fmt: skip

    def replaced(self, compare: int, value: int) -> Replaced | None:
        """See `Word.replaced`; of a word that is changed, too, only if there is one result."""
        possible = list(self._possible(self._unknown()))
        sets = self._known.sets + [write for write in possible if write.how == "set"]
        last = [
            write for write in sets
            if not any(other is not write and other.after(write) for other in sets)
        ]  # fmt: skip
        if self._index.only_set:
            good = [write for write in sets if holds(compare, write.value, value)]
            bad = [write for write in last if fails(compare, write.value, value)]
            return Replaced(_first(bad), _first(good)) if bad and good else None
        changes = [write for write in possible if write.how != "set"]
        if not changes:
            return None
        known = self._known.writes(changes[-1], possible)
        every = [write for write in known if write.how != "set"] + changes
        number = total(last, every)
        if not fails(compare, number, value):
            return None
        return Replaced(_first(changes), None)

    def confused(self, value: int) -> Write | None:
        """See `Word.confused`: there are two, or the word has the value before it is written."""
        two = list(islice(self._satisfying(CMP_EQ, value), 2))
        return two[-1] if len(two) > (value not in self._known.numbers()) else None

    def known_by_all(self, compare: int, value: int) -> Clock:
        """What those writes know of which one at least has come before the wait."""
        index, known = self._index, self._known
        if index.only_set:
            if any(holds(compare, number, value) for number in known.numbers()):
                return Clock()
            first = next(self._satisfying(compare, value), None)
            return Clock() if first is None else index.told[index.place[first.over]]
        possible = list(self._possible(self._unknown()))
        if not possible:
            return Clock()
        certain = known.writes(possible[-1], possible)
        n = first_to_hold(certain, possible, compare, value)
        return index.told[index.place[possible[n - 1].over]] if n else Clock()

    def _of_sets(self, compare: int, value: int) -> list[Write]:
        """Of a word that is only set: what comes before each set that satisfies the condition."""
        sets = self._known.sets
        if not sets and holds(compare, 0, value):
            return []
        needed: list[Write] | None = None
        certain = (write for write in sets if holds(compare, write.value, value))
        for write in chain(certain, self._satisfying(compare, value)):
            if needed is None:
                needed = list(self._up_to(write))
            else:
                needed = [one for one in needed if one is write or write.after(one)]
            if not needed:
                return []
        if needed is None:
            needed = list(self._possible(self._unknown()))
        if holds(compare, 0, value):
            needed = [one for one in needed if not all(write.after(one) for write in sets)]
        return needed

    def _unknown(self) -> range:
        """The places where writes may be that come before the wait, or at the same time."""
        overs, first = self._index.overs, self._known.first
        while first < len(overs) and self._known.has(overs[first]):
            first += 1
        self._known.first = first
        return range(first, self._index.all_after(self._who))

    def _possible(self, places: Iterable[int]) -> Iterator[Write]:
        """The writes there that may or may not have come before the wait."""
        for place in places:
            self._word.work += 1
            write = self._writes[self._index.overs[place]]
            if self._open(write):
                yield write

    def _open(self, write: Write) -> bool:
        return not write.over.known(self._clock) and not self._who.known(write.clock)

    def _satisfying(self, compare: int, value: int) -> Iterator[Write]:
        """Of these, those which may make the condition hold."""
        places = self._unknown()
        if compare == CMP_EQ:
            yield from self._possible(self._index.equal(value, places.start, places.stop))
            return
        for write in self._possible(places):
            if holds(compare, write.value, value):
                yield write

    def _up_to(self, last: Write) -> Iterator[Write]:
        """A write and those before it, as far as they are open."""
        told = last.told(None)
        before = _those_in(self._writes, self._index.bits, told.masks, self._clock.masks)
        stores = (self._writes[over] for over in self._index.stores if over.known(told))
        for write in chain(before, stores):
            if write is not last and self._open(write):
                yield write
        if self._open(last):
            yield last
