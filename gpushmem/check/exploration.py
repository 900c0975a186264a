"""Which other orders of a job's operations there are: those that another run is to try.

The operations of a run that take turns (`turns`) are *events*. Two of them depend on each other if
their order matters: one changes a word that the other reads, or both change it and not in the same
way (additions may come in any order). A *schedule* is the order of those that depend on each other;
orders that differ in nothing else are one. What an event's place in a schedule depends on, its
*past*, is what came before it in its thread, what the program's synchronisation puts before it in
every run (the clocks of `happens_before`), and what it depends on; an event with another past is
another event, and its `name` says which it is.

Of each pair of events of a run that depend on each other, with nothing between, the second may have
been first, if no synchronisation forbids it: another run is to begin with all that does not come
after the first, then the second. So each schedule leads to its neighbours. A beginning that is part
of a run that has been made is not tried again, so that no schedule is run twice; when nothing is
left to try, all have been run.

Proof sketch: let M be a schedule that has not been run, R the run that shares the largest beginning
C with it, and e the first event of M that is not in R though its past is in C. R has e's call with
a larger past, so with an f, not in C, that it depends on. The neighbour without f, and without what
comes after f, contains C, and e's call with a smaller past; one of its neighbours has C and e. A
wait goes on without f where the other changes allow it; else without more of them (`_without`).

Source: Flanagan and Godefroid, "Dynamic partial-order reduction for model checking software", POPL
2005; events with a past as in Rodriguez et al., "Unfolding-based partial order reduction", 2015.
"""

from __future__ import annotations

import operator
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial, reduce
from math import factorial, prod
from typing import Any, NamedTuple, cast

from gpushmem.check.accesses import line_in
from gpushmem.check.calls import Call, threads_of
from gpushmem.check.conditions import CHANGES, changed, holds
from gpushmem.check.history import History, Turn
from gpushmem.check.pe_memory import CELL
from gpushmem.check.turns import CHANGES_NOTHING, argument_of, named, thread_named
from gpushmem.check.vector_clock import NONE, Bit, Masks
from gpushmem.ops import CMP_GE, CMP_GT

__all__ = ["Event", "Exploration", "Loops", "Run", "Word", "neighbours", "run_of", "waits_for"]

MOST = 1 << 12  # events of a run that are looked at
MANY = 10**9  # more are shown as a power of ten
TRIES = 64  # ways in which a wait may have ended earlier


class Word(NamedTuple):
    """A word that an event looks at, or changes."""

    space: Any
    start: int
    size: int
    change: str  # how, "" if it does not
    value: int | None  # by which it is changed, if that is known
    falls: bool = False  # whether somebody adds less than 0


class Wait(NamedTuple):
    """What an event waits for."""

    goes_on: Callable[[int, int], bool]  # by what a word is, and what it is compared with
    wanted: tuple[int, ...]  # with what each of its words is compared
    some: bool = False  # whether one of them is enough
    grows: bool = False  # whether it goes on after additions, too, if it would before


class Event(NamedTuple):
    """An operation that takes a turn."""

    who: int  # the thread, as `turns.named`
    what: str  # the operation and its line
    words: tuple[Word, ...]
    reads: bool  # whether what it returns depends on the words
    wait: Wait | None
    over: Bit | None  # what a clock has that knows of it
    known: Masks  #  of the clock with which it began


class Alternative(NamedTuple):
    """The beginning of another run: some events of this one, then one of them earlier than here."""

    rest: int
    last: int
    name: int  # of the last one, which is new
    why: str  # which two change places


class Run(NamedTuple):
    """What there is to say of a run: its events, and its neighbours."""

    names: list[int]
    threads: list[int]
    alternatives: list[Alternative]
    left_out: int  # events that were not looked at
    loops: Loops | None = None
    chain: tuple[str, ...] = ()  # who has changed places, up to this run


# --- from the history of a run


class Loops:
    """The lines at which operations are tried until they succeed: that is to wait."""

    def __init__(self) -> None:
        self._again: set[str] = set()  # lines at which what had failed was tried again at once
        self._given_up: set[str] = set()  # ... and was not, by a thread that went on

    def add(self, other: Loops) -> None:
        """Know what another run has shown."""
        self._again |= other._again
        self._given_up |= other._given_up

    def failed(self, turn: Turn, following: Turn) -> bool:
        """An operation has failed; returns whether the thread has tried it again at once."""
        again = _what(turn) == _what(following)
        (self._again if again else self._given_up).add(turn.site)
        return again

    def __contains__(self, site: str) -> bool:
        return site in self._again and site not in self._given_up


def run_of(history: History, known: Loops) -> Run:
    """What there is to say of a run; `known`: from others."""
    last: dict[Any, Turn] = {}
    taken: dict[int, Turn] = {}
    loops = Loops()
    for turn in sorted(history.turns, key=lambda turn: turn.number):
        before, clock = last.get(turn.who), turn.clock
        if before is not None and before.failed and loops.failed(before, turn):
            clock = taken.pop(before.number).clock  # what failures have told it does not matter
        taken[turn.number] = last[turn.who] = turn._replace(clock=clock)
    loops.add(known)
    polling = [
        taken.pop(turn.number)._replace(failed=False) for turn in last.values()
        if turn.failed and turn.site in loops and not history.has_ended(turn)
    ]  # fmt: skip
    waiting = [_event(history, turn) for turn in history.waiting]
    waiting += [_event(history, turn, True) for turn in polling]
    events = [_event(history, turn, turn.site in loops) for turn in taken.values()]
    return neighbours(events, waiting)._replace(loops=loops)


def _what(turn: Turn) -> Any:
    """What is tried again, and where."""
    by = turn.by
    return (turn.site, by.op.name, by.words) if isinstance(by, Call) else (turn.site, by.where)


def _event(history: History, turn: Turn, polls: bool = False) -> Event:
    """An event; `polls`: it is tried until it succeeds."""
    by, site = turn.by, turn.site
    polls &= not turn.failed
    pe, launch, thread = turn.who
    masks = turn.clock.masks
    if not isinstance(by, Call):
        change = "" if turn.failed else by.change
        word = Word(by.where[0], by.where[1], 1, change, by.value)
        who = named(pe, launch, thread)
        wait = _until(by.fails, by.given) if polls and by.fails else None
        return Event(
            who, f"cuda.atomic at {line_in(site)}", (word,), by.used, wait, turn.over, masks
        )
    if launch:  # a group that calls together is named by its first thread
        thread, _ = threads_of(history.pes[pe].launches[launch], by, thread)
    who, op = named(pe, launch, thread), by.op
    update = by.update
    values, status, _ = by.contents
    words, wanted = [], []
    for space, start, item, times, writes in by.words:
        change = "" if not writes or turn.failed else update.how if update else "set"
        for k in range(times):
            if not status.get(k):
                words.append(Word(space, start + k * item, item, change, update and update.value))
                wanted.append(values.get(k, by.value))
    reads = op.returns.dtype is not None and history.looks_at_result(by) is not False
    wait = None
    if op.waits or (polls and op.base.startswith("test")):
        some = "_any" in op.base or "_some" in op.base
        wait = waits_for(by.compare, tuple(wanted), some)
    elif polls:
        wait = _until(CHANGES_NOTHING[op.base], argument_of(op, by.compare, by.value))
    what = f"{op.name} at {line_in(site)}"
    return Event(who, what, tuple(words), reads, wait, turn.over, masks)


def waits_for(compare: int, wanted: tuple[int, ...], some: bool = False) -> Wait:
    """What a wait is for."""
    return Wait(partial(holds, compare), wanted, some, compare in (CMP_GE, CMP_GT))


def _until(fails: Callable[[int, int], bool], given: int) -> Wait:
    """What a loop is for that tries an operation until it does not fail."""
    return Wait(lambda value, wanted: not fails(value, wanted), (given,))


# --- a run and its neighbours


class _Schedule:
    """The events of a run, with what each comes after. Sets of events are masks.

    Those from `n` on are waits that have not ended: they have only an order that would end them.
    """

    def __init__(self, events: list[Event], waiting: list[Event]) -> None:
        self.n = len(events)
        self.events = events + waiting
        self.fixed: list[int] = []  # what an event directly comes after in every schedule
        self.on: list[int] = []  # ... and in this one, as it depends on it
        self.past: list[int] = []
        self.names: list[int] = []
        self._number: list[int] = []  # of an event in its thread
        self._before: list[int | None] = []  # the event before it in its thread
        self._near: dict[Any, list[int]] = defaultdict(list)  # events by places of their words
        last: dict[int, int] = {}  # event of each thread
        seen: dict[Any, int] = defaultdict(int)  # bits of all events so far
        at: dict[Any, int] = {}  # event by its bit
        for j, event in enumerate(self.events):
            before = last.get(event.who)
            self._before.append(before)
            self._number.append(0 if before is None else self._number[before] + 1)
            fixed = 0 if before is None else 1 << before
            for key, bits in seen.items():
                for bit in _bits(event.known.get(key, NONE).above(0) & bits):
                    fixed |= 1 << at[key, bit]
            self.fixed.append(fixed)
            close = self._close(j)
            found = self._depends_on(j, close) if j < self.n else None
            self.on.append(_mask(close) if found is None else found)
            if j >= self.n:
                continue
            past, nearest = self._closed(fixed | self.on[j])
            self.past.append(past)
            self.names.append(self._name(j, nearest))
            last[event.who] = j
            if event.over is not None:
                key, bit = event.over[:3], event.over.bit
                seen[key] |= 1 << bit
                at[key, bit] = j
            for place in _places(event):
                self._near[place].append(j)

    def _close(self, j: int) -> list[int]:
        """The events so far that touch words of an event, in their order."""
        near = {k for place in _places(self.events[j]) for k in self._near.get(place, ()) if k != j}
        return sorted(near)

    def _closed(self, direct: int) -> tuple[int, list[int]]:
        """Some events and what they come after; and those of them that no other one comes after."""
        past, nearest = 0, []
        while direct:
            k = direct.bit_length() - 1
            nearest.append(k)
            past |= self.past[k] | 1 << k
            direct &= ~past
        return past, nearest

    def _name(self, j: int, nearest: list[int]) -> int:
        return hash(
            (self.events[j].who, self._number[j], tuple(sorted(self.names[k] for k in nearest)))
        )

    def _depends_on(self, j: int, before: list[int]) -> int | None:
        """Which of the events before this one it depends on; None: it is a wait, and would go on.

        A wait depends on the changes up to the one that has ended it, and on those that might have
        let it wait on; and so do these on it.
        """
        event, found = self.events[j], 0
        if event.wait is not None:
            needed = [self._needed(event, k, word, before) for k, word in enumerate(event.words)]
            if (all if event.wait.some else any)(each is None for each in needed):
                return None
            if not event.reads:
                found = reduce(operator.or_, (each or 0 for each in needed), 0)
        for index, word in enumerate(event.words):
            for k in before:
                other = self.events[k]
                for its, theirs in enumerate(other.words):
                    if _overlap(word, theirs) and _conflict(
                        (event, index, word), (other, its, theirs)
                    ):
                        found |= 1 << k
        return found

    def _needed(self, event: Event, index: int, word: Word, before: list[int]) -> int | None:
        """The changes of a word up to the one after which a wait goes on; None: it does not."""
        changes, known = [], cast("int | None", 0)
        needed = 0 if _ends(event, index, known) else None
        for k in before:
            for theirs in self.events[k].words:
                if not theirs.change or not _overlap(word, theirs):
                    continue
                changes.append(k)
                same = _same(word, theirs)
                known = changed(known, theirs.change, theirs.value) if same else None
                if known is not None and not _ends(event, index, known):
                    needed = None
                elif needed is None or known is None:
                    needed = len(changes)
        return None if needed is None else _mask(changes[:needed])

    def alternatives(self) -> Iterator[Alternative]:
        """The neighbours: for each pair that may change places, how another run begins."""
        for j, event in enumerate(self.events):
            fixed, _ = self._closed(self.fixed[j])
            _, nearest = self._closed(self.fixed[j] | self.on[j])
            for i in nearest if j < self.n else _bits(self.on[j]):
                if not self.on[j] >> i & 1 or fixed >> i & 1:
                    continue
                for rest, on in self._without(i, j, fixed):
                    if self._sees_again(j, on):
                        continue
                    _, nearest_now = self._closed(self.fixed[j] | on)
                    why = f"{_who(event)} comes before {_who(self.events[i])}"
                    yield Alternative(rest, j, self._name(j, nearest_now), why)

    def _sees_again(self, j: int, on: int) -> bool:
        """Whether an event would see what the one before it in its thread has seen at its line.

        Then it is none: the thread polls (`turns.counted`).
        """
        event, before = self.events[j], self._before[j]
        if before is None or event.wait is not None or any(word.change for word in event.words):
            return False
        last = self.events[before]
        again = (event.what, event.words) == (last.what, last.words)
        return again and not on & ~self.past[before]

    def _without(self, i: int, j: int, fixed: int) -> Iterator[tuple[int, int]]:
        """What does not come after one event, and what another one then depends on.

        Where that would wait, without one more of the changes, too.
        """
        close, left = self._close(j), [1 << i]
        tried: set[int] = set()
        while left and len(tried) < TRIES:
            without = left.pop()
            rest = sum(
                1 << k for k in range(self.n)
                if k != j and not without >> k & 1 and not self.past[k] & without
            )  # fmt: skip
            if rest in tried:
                continue
            tried.add(rest)
            on = self._depends_on(j, [k for k in close if rest >> k & 1])
            if on is not None:
                yield rest, on
                continue
            left += [
                without | 1 << k for k in close
                if rest >> k & 1 and not fixed >> k & 1
                and any(word.change for word in self.events[k].words)
            ]  # fmt: skip


def _who(event: Event) -> str:
    return f"{event.what} by {thread_named(event.who)}"


def _bits(mask: int) -> Iterator[int]:
    while mask:
        bit = mask & -mask
        mask ^= bit
        yield bit.bit_length() - 1


def _mask(events: Iterable[int]) -> int:
    return sum(1 << k for k in events)


def _places(event: Event) -> set[Any]:
    """The cells of memory that an event's words are in."""
    return {
        (word.space, cell)
        for word in event.words
        for cell in range(word.start >> CELL, (word.start + word.size - 1 >> CELL) + 1)
    }


def _overlap(one: Word, other: Word) -> bool:
    near = one.start < other.start + other.size and other.start < one.start + one.size
    return near and one.space == other.space


def _same(one: Word, other: Word) -> bool:
    return (one.start, one.size) == (other.start, other.size)


def _conflict(one: tuple[Event, int, Word], other: tuple[Event, int, Word]) -> bool:
    """Whether the order of two events matters that touch the same bytes."""
    (event, _, word), (another, _, theirs) = one, other
    if not word.change and not theirs.change:
        return False
    for (waiting, index, _), (_, _, by) in ((one, other), (other, one)):
        if waiting.wait is not None and not waiting.reads:
            return not _keeps(waiting.wait, waiting.wait.wanted[index], by)
    if (event.reads and theirs.change) or (another.reads and word.change):
        return True
    return word.change != theirs.change or word.change not in CHANGES or not _same(word, theirs)


def _keeps(wait: Wait, wanted: int, by: Word) -> bool:
    """Whether a wait that would go on would do so after this change, too."""
    if by.value is None:
        return False
    if by.change == "set":
        return wait.goes_on(by.value, wanted)
    # Where additions of less than 0 come before the wait, it may need those that make up for them.
    return wait.grows and by.change in ("add", "or") and by.value >= 0 and not by.falls


def _ends(event: Event, index: int, value: int | None) -> bool:
    """Whether a wait for this would go on if a word is this; False if that is not known."""
    assert event.wait is not None
    return value is not None and event.wait.goes_on(value, event.wait.wanted[index])


# --- all runs of a job


class Exploration:
    """The schedules of a job that have been run, and those that are to be."""

    def __init__(self) -> None:
        self._runs: list[frozenset[int]] = []
        self._with: dict[int, list[int]] = defaultdict(list)  # name of an event -> runs
        self._left: deque[tuple[Run, Alternative]] = deque()
        self._asked: set[Any] = set()
        self._first: list[int] = []  # whose operations the first run had
        self.loops = Loops()
        self.left_out = 0  # events of the longest run that were not looked at

    @property
    def schedules(self) -> int:
        """How many different ones have been run."""
        return len(set(self._runs))

    def orders(self) -> str:
        """In how many orders the operations of the first run may come, if none depended on others.

        With n_t operations of each thread t, n! / (n_1! n_2! ...).
        """
        each = Counter(self._first)
        many = factorial(len(self._first)) // prod(map(factorial, each.values()))
        shown = f"{many:,}" if many < MANY else f"{many:.1e}"
        n = len(self._first)
        return f"{shown} order{'s' * (many != 1)} of {n} operation{'s' * (n != 1)}"

    def add(self, run: Run) -> None:
        """A run has been made."""
        self._first = self._first or run.threads
        names = frozenset(run.names)
        for name in names:
            self._with[name].append(len(self._runs))
        self._runs.append(names)
        self.left_out = max(self.left_out, run.left_out)
        if run.loops is not None:
            self.loops.add(run.loops)
        self._left.extend((run, alternative) for alternative in run.alternatives)

    def next(self) -> tuple[list[int], tuple[str, ...]] | None:
        """The threads that begin the next run, and who changes places; None: none is left."""
        while self._left:
            run, one = self._left.popleft()
            names = frozenset(run.names[k] for k in _bits(one.rest))
            if (names, one.name) in self._asked or self._is_made(names, one.name):
                continue
            self._asked.add((names, one.name))
            threads = [run.threads[k] for k in (*_bits(one.rest), one.last)]
            return threads, (*run.chain, one.why)
        return None

    def more(self) -> int:
        """How many more there are, at least."""
        found = set()
        for run, one in self._left:
            names = frozenset(run.names[k] for k in _bits(one.rest))
            if (names, one.name) not in self._asked and not self._is_made(names, one.name):
                found.add((names, one.name))
        return len(found)

    def _is_made(self, names: frozenset[int], name: int) -> bool:
        return any(names <= self._runs[k] for k in self._with.get(name, ()))


def neighbours(events: list[Event], waiting: list[Event]) -> Run:
    """A run by its events, and by its waits that have not ended."""
    left_out, events = max(len(events) - MOST, 0), events[:MOST]
    lowered = {
        (word.space, word.start) for event in events for word in event.words
        if word.change == "add" and (word.value is None or word.value < 0)
    }  # fmt: skip
    if lowered:
        events = [
            event._replace(words=tuple(
                word._replace(falls=(word.space, word.start) in lowered) for word in event.words
            ))
            for event in events
        ]  # fmt: skip
    made = _Schedule(events, waiting)
    return Run(
        made.names, [event.who for event in made.events], list(made.alternatives()), left_out
    )
