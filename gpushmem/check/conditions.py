"""Which writes a condition cannot have held without, whatever the schedule.

Words start at 0. Writes set the word, or change what it is; one whose value is not recorded may
make anything of it. For words that are only set the search is exact. Where some writes change the
word, it takes any of the changes together, also when some cannot come without others: then a wait
may order less than it does, never more.
"""

from __future__ import annotations

import bisect
import copy
import operator
from collections.abc import Iterable
from functools import reduce
from typing import Any, NamedTuple

from gpushmem.check.vector_clock import NONE, Bit, Clock, Masks
from gpushmem.ops import CMP_EQ, CMP_GE, CMP_GT, CMP_LE, CMP_LT, CMP_NE

__all__ = [
    "CHANGES",
    "Known",
    "Write",
    "changed",
    "fails",
    "first_to_hold",
    "holds",
    "some_without",
    "total",
]

HOLDS = {
    CMP_EQ: lambda a, b: a == b, CMP_NE: lambda a, b: a != b, CMP_GT: lambda a, b: a > b,
    CMP_LE: lambda a, b: a <= b, CMP_LT: lambda a, b: a < b, CMP_GE: lambda a, b: a >= b,
}  # fmt: skip


NARROW = 1 << 31  # less than this is the same number in words of all widths
CHANGES = {"add": operator.add, "or": operator.or_, "and": operator.and_, "xor": operator.xor}


class Write(NamedTuple):
    """A write to a word."""

    over: Any  # what a clock has that knows it has arrived
    how: str  # "set", or one of CHANGES
    value: int | None  # None: not recorded
    clock: Clock  # what is known when it arrives
    call: Any  # the operation's
    stamp: int = 0  # where it is in the log
    goes_on: bool = False  # whether who sees it has seen the write before it, too
    block: Any = None  # who writes it, if its threads learn more: `near`
    near: Clock | None = None
    tells: Clock | None = None  # what others learn from it, if that is less than what is known

    def told(self, block: Any) -> Clock:
        """What a thread of a block learns that sees it."""
        if self.tells is not None:
            return self.tells
        return self.clock if self.near is None or block != self.block else self.near

    def after(self, other: Write) -> bool:
        """Whether it arrives after another one in every run."""
        return bool(other.over.known(self.clock))


class _Sum:
    """What a clock has that knows a sum of changes: nothing is known to come after it."""

    def known(self, clock: Clock) -> bool:
        return False


class Known:
    """Writes that are known to be before a wait, and what they lead to."""

    def __init__(self) -> None:
        self.bits: Masks = {}
        self.first = 0  # all writes of an index before this one are among them
        self.sets: list[Write] = []  # after which the word was not set again
        self._changes: Any = None  # of that, too: (the last, the others)
        self._sum: Write | None = None
        self._adds_up = True
        self._set_clock, self._change_clock = Clock(), Clock()  # of the sets, of the others

    def with_more(self, writes: Iterable[Write]) -> Known:
        """These and more, in time that depends on how many more."""
        made = copy.copy(self)
        made.bits = self.bits.copy()
        made._set_clock, made._change_clock = self._set_clock.copy(), self._change_clock.copy()
        for write in writes:
            made._add(write)
        return made

    def has(self, over: Any) -> bool:
        """Whether a write is one of them."""
        return isinstance(over, Bit) and self.bits.get(over[:3], NONE).has(over.bit)

    def fits(self, clock: Clock) -> bool:
        """Whether a clock knows all of them."""
        masks = clock.masks
        return all(masks.get(key, NONE).covers(bits) for key, bits in self.bits.items())

    def _add(self, write: Write) -> None:
        if isinstance(write.over, Bit):
            key = write.over[:3]
            self.bits[key] = self.bits.get(key, NONE).plus(write.over.bit)
        replaced = write.over.known(self._set_clock)
        if write.how == "set":
            self._set_clock.join(write.clock)
            self._set(write, replaced)
            return
        self._change_clock.join(write.clock)
        if not replaced:
            self._change(write)

    def _set(self, write: Write, replaced: bool) -> None:
        """Leave out what the word was before it was set; `replaced`: it was set again."""
        changes = [change for change in self.changes() if not write.after(change)]
        self.sets = [one for one in self.sets if not write.after(one)] + [write] * (not replaced)
        self._changes, self._sum, self._adds_up = None, None, len(self.sets) <= 1
        for change in changes:
            self._change(change)

    def _change(self, write: Write) -> None:
        self._changes = write, self._changes
        before = self._sum
        how, value = (write.how, None) if before is None else (before.how, before.value)
        self._adds_up = (
            self._adds_up
            and write.value is not None
            and write.how == how
            and all(write.after(one) for one in self.sets)
        )
        if self._adds_up:
            assert write.value is not None
            total = write.value if value is None else CHANGES[how](value, write.value)
            self._sum = Write(_Sum(), how, total, self._change_clock, None)

    def numbers(self) -> list[int | None]:
        """What the word, which is only set, may be."""
        return [write.value for write in self.sets] or [0]

    def changes(self) -> list[Write]:
        """The changes after which the word was not set again, one by one."""
        found, rest = [], self._changes
        while rest is not None:
            write, rest = rest
            found.append(write)
        return sorted(found, key=lambda write: write.stamp)

    def came_after(self, write: Write) -> bool:
        """Whether one of them arrives after a write in every run."""
        return any(write.over.known(c) for c in (self._set_clock, self._change_clock))

    def writes(self, left_out: Write, possible: list[Write]) -> list[Write]:
        """The writes after which the word was not set again; if they can be, changes as one."""
        total = self._sum
        if total is None or not self._adds_up or self.came_after(left_out):
            return self.sets + self.changes()
        if any(write.how != total.how for write in possible):
            return self.sets + self.changes()
        return [*self.sets, total]


def changed(number: int | None, how: str, value: int | None) -> int | None:
    """What a word is after a write; None: that is not known."""
    if how == "set":
        return value
    return None if number is None or value is None else CHANGES[how](number, value)


def holds(compare: int, number: int | None, value: int) -> bool:
    """Whether a word that was set may satisfy a condition."""
    return number is None or bool(HOLDS[compare](number, value))


def fails(compare: int, number: int | None, value: int) -> bool:
    """Whether a word that was set does not satisfy a condition, whether it is signed or not."""
    if compare not in (CMP_EQ, CMP_NE) and number is not None and (number < 0) != (value < 0):
        return False
    return not holds(compare, number, value)


def total(sets: list[Write], changes: list[Write]) -> int | None:
    """What a word is after these writes; None if that depends on their order, or on its width."""
    if len(sets) > 1 or len({write.how for write in changes}) > 1:
        return None
    start = sets[0] if sets else None
    number = start.value if start else 0
    for write in changes:
        if start and start.after(write):
            continue
        if number is None or write.value is None or (start and not write.after(start)):
            return None
        number = CHANGES[write.how](number, write.value)
    return None if number is None or abs(number) >= NARROW else number


def some_without(
    left_out: Write, certain: list[Write], possible: list[Write], compare: int, value: int
) -> list[Write] | None:
    """The first of the possible writes with which the condition can hold before one has arrived.

    None: it can hold with none of them.
    """
    others = [w for w in possible if w is not left_out and not w.after(left_out)]
    sure = [w for w in certain if not w.after(left_out)]
    n = first_to_hold(sure, others, compare, value)
    return None if n is None else others[:n]


def first_to_hold(sure: list[Write], others: list[Write], compare: int, value: int) -> int | None:
    """How many of the other writes, the first ones, can make the condition hold; None: all cannot.

    What can be done with some of them can be done with more.
    """
    if not may_hold(sure, others, compare, value):
        return None
    return bisect.bisect_left(
        range(len(others)), True, key=lambda n: may_hold(sure, others[:n], compare, value)
    )


def may_hold(sure: list[Write], others: list[Write], compare: int, value: int) -> bool:
    """Whether the condition can hold after some writes, and none, some or all of the others."""
    sets = [w for w in sure if w.how == "set"]
    starts: list[tuple[Write | None, int | None]] = [(w, w.value) for w in sets]
    starts += [(w, w.value) for w in others if w.how == "set"]
    if not sets:
        starts.append((None, 0))
    for start, number in starts:
        changes = [w for w in others if w.how != "set" and not (start and start.after(w))]
        known = []
        for write in sure:
            if write.how == "set" or (start and start.after(write)):
                continue
            if start is None or write.after(start):
                known.append(write)
            else:  # before the word was set, or after it
                changes.append(write)
        every = changes + known
        if number is None or any(write.value is None for write in every):
            return True
        rounds = 1
        if len({write.how for write in every}) > 1:  # their order matters
            changes, known, rounds = every, [], len(every)
        changed = number
        for write in known:
            changed = CHANGES[write.how](changed, write.value)
        if _reachable(compare, changed, changes, value, rounds):
            return True
    return False


def _by_or(start: int, numbers: list[int], value: int) -> bool:
    """Whether `start` and some of the numbers, or-ed, make `value`: all that add no other bit."""
    return reduce(operator.or_, (n for n in numbers if n | value == value), start) == value


def _by_and(start: int, numbers: list[int], value: int) -> bool:
    """The same for and: all that take no bit of it away."""
    return reduce(operator.and_, (n for n in numbers if n & value == value), start) == value


def _by_xor(start: int, numbers: list[int], value: int) -> bool:
    """The same for xor: by elimination, as of linear equations."""
    basis: list[int] = []
    for number in numbers:
        left = reduce(lambda n, one: min(n, n ^ one), basis, number & ALL_BITS)
        if left:
            basis.append(left)
    return reduce(lambda n, one: min(n, n ^ one), basis, (start ^ value) & ALL_BITS) == 0


ALL_BITS = (1 << 64) - 1
BITWISE = {"or": _by_or, "and": _by_and, "xor": _by_xor}


def _by_add(compare: int, start: int, numbers: list[int], value: int) -> bool | None:
    """The same for add, and any comparison; None if that takes a search."""
    least, most = (start + sum(n for n in numbers if (n > 0) == up) for up in (False, True))
    if compare == CMP_NE:
        return any(n != value for n in (start, least, most))
    if compare != CMP_EQ:
        return any(HOLDS[compare](n, value) for n in (least, most))
    if not least <= value <= most:
        return False
    if len(set(numbers)) == 1:
        return value == start or (value - start) % numbers[0] == 0
    return None


def _reachable(compare: int, start: int, steps: list[Write], value: int, rounds: int) -> bool:
    """Whether the start, changed by some of the steps, satisfies the condition."""
    if steps and rounds == 1:
        numbers = [step.value or 0 for step in steps]
        how = steps[0].how
        if how == "add":
            found = _by_add(compare, start, numbers, value)
            if found is not None:
                return found
        elif compare == CMP_EQ:
            return BITWISE[how](start, numbers, value)
    made = {start}
    for step in steps * rounds:
        made |= {CHANGES[step.how](number, step.value) for number in made}
        if len(made) > 4096:
            return True
    return any(HOLDS[compare](number, value) for number in made)
