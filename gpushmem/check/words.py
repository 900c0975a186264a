"""Words that PEs wait for: which writes a wait must have seen, whatever the schedule.

A wait that has returned orders the writes without which its condition cannot have held: there is no
order of the writes, in agreement with what is known of them, in which the word satisfies the
condition and the write is missing. Which writes may come before the wait at all, and in which
order, is what the clocks know so far.

Words start at 0. Writes set the word, add to it, or, if their value is not recorded, do not satisfy
the condition. For words that are only set the search is exact. Where some writes add, it takes any
of the additions together, also when some cannot come without others: then a wait may order less
than it does, never more.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from gpushmem.check.clock import Clock
from gpushmem.ops import CMP_EQ, CMP_GE, CMP_GT, CMP_LE, CMP_LT, CMP_NE

__all__ = ["Word", "Write"]

HOLDS = {
    CMP_EQ: lambda a, b: a == b, CMP_NE: lambda a, b: a != b, CMP_GT: lambda a, b: a > b,
    CMP_LE: lambda a, b: a <= b, CMP_LT: lambda a, b: a < b, CMP_GE: lambda a, b: a >= b,
}  # fmt: skip


class Write(NamedTuple):
    """A write to a word."""

    over: Any  # what a clock has that knows it has arrived
    adds: int | None  # what it adds; None: it sets the word
    value: int | None  # to this; None: not recorded
    clock: Clock  # what is known when it arrives
    call: Any  # the operation's

    def after(self, other: Write) -> bool:
        """Whether it arrives after another one in every run."""
        return bool(other.over.known(self.clock))


class Word:
    """One word."""

    def __init__(self) -> None:
        self.writes: dict[Any, Write] = {}

    def put(self, write: Write) -> None:
        """Know a write, or more of it than before."""
        self.writes[write.over] = write

    def hear(self, who: Any, clock: Clock, compare: int, value: int) -> frozenset[Any]:
        """Let `clock` know what a wait that returned must have seen; returns the writes.

        A clock that knows `who` is that of something that comes after the wait.
        """
        certain, possible = [], []
        for write in self.writes.values():
            if write.over.known(clock):
                certain.append(write)
            elif not who.known(write.clock):
                possible.append(write)
        certain = _not_replaced(certain)
        seen = frozenset(
            write.over
            for write in possible
            if not _can_do_without(write, certain, possible, compare, value)
        )
        for over in seen:
            clock.join(self.writes[over].clock)
            over.tell(clock)
        return seen


def _not_replaced(writes: list[Write]) -> list[Write]:
    """Those after which the word was not set again."""
    last = next((write for write in reversed(writes) if write.adds is None), None)
    if last is None:
        return writes
    writes = [write for write in writes if write is last or not last.after(write)]
    sets = [write for write in writes if write.adds is None]
    return [w for w in writes if not any(other.after(w) for other in sets if other is not w)]


def _can_do_without(
    left_out: Write, certain: list[Write], possible: list[Write], compare: int, value: int
) -> bool:
    """Whether the condition can hold before this write has arrived."""
    others = [w for w in possible if w is not left_out and not w.after(left_out)]
    sure = [w for w in certain if not w.after(left_out)]
    sets = [w for w in sure if w.adds is None]
    starts: list[tuple[Write | None, int | None]] = [(w, w.value) for w in sets]
    starts += [(w, w.value) for w in others if w.adds is None]
    if not sets:
        starts.append((None, 0))
    for start, number in starts:
        if number is None:
            continue

        adding = [w for w in others if w.adds is not None and not (start and start.after(w))]
        least = 0
        for write in sure:
            if write.adds is None or (start and start.after(write)):
                continue
            if start is None or write.after(start):
                least += write.adds
            else:  # before the word was set, or after it
                adding.append(write)
        if _reachable(compare, number + least, [w.adds or 0 for w in adding], value):
            return True
    return False


def _reachable(compare: int, start: int, steps: list[int], value: int) -> bool:
    """Whether a sum of the start and some of the steps satisfies the condition."""
    sums = {start}
    for step in steps:
        sums |= {number + step for number in sums}
        if len(sums) > 4096:
            return True
    return any(HOLDS[compare](number, value) for number in sums)
