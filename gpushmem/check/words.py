"""Words that PEs wait for: which writes a wait must have seen, whatever the schedule.

A wait that has returned orders the writes without which its condition cannot have held: there is no
order of the writes, in agreement with what is known of them, in which the word satisfies the
condition and the write is missing. Which writes may come before the wait at all, and in which
order, is what the clocks know so far.

Words start at 0. Writes set the word, or change what it is; one whose value is not recorded may
make anything of it. For words that are only set the search is exact. Where some writes change the
word, it takes any of the changes together, also when some cannot come without others: then a wait
may order less than it does, never more.
"""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

from gpushmem.check.clock import Clock
from gpushmem.ops import CMP_EQ, CMP_GE, CMP_GT, CMP_LE, CMP_LT, CMP_NE

__all__ = ["CHANGES", "Word", "Write"]

HOLDS = {
    CMP_EQ: lambda a, b: a == b, CMP_NE: lambda a, b: a != b, CMP_GT: lambda a, b: a > b,
    CMP_LE: lambda a, b: a <= b, CMP_LT: lambda a, b: a < b, CMP_GE: lambda a, b: a >= b,
}  # fmt: skip


CHANGES = {"add": operator.add, "or": operator.or_, "and": operator.and_, "xor": operator.xor}


class Write(NamedTuple):
    """A write to a word."""

    over: Any  # what a clock has that knows it has arrived
    how: str  # "set", or one of CHANGES
    value: int | None  # None: not recorded
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
    last = next((write for write in reversed(writes) if write.how == "set"), None)
    if last is None:
        return writes
    writes = [write for write in writes if write is last or not last.after(write)]
    sets = [write for write in writes if write.how == "set"]
    return [w for w in writes if not any(other.after(w) for other in sets if other is not w)]


def _can_do_without(
    left_out: Write, certain: list[Write], possible: list[Write], compare: int, value: int
) -> bool:
    """Whether the condition can hold before this write has arrived."""
    others = [w for w in possible if w is not left_out and not w.after(left_out)]
    sure = [w for w in certain if not w.after(left_out)]
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


def _reachable(compare: int, start: int, steps: list[Write], value: int, rounds: int) -> bool:
    """Whether the start, changed by some of the steps, satisfies the condition."""
    made = {start}
    for step in steps * rounds:
        made |= {CHANGES[step.how](number, step.value) for number in made}
        if len(made) > 4096:
            return True
    return any(HOLDS[compare](number, value) for number in made)
