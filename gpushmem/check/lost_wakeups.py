"""Waits that may never end: what they wait for may be replaced before it is seen, or not come.

A wait is sure to end if its condition holds when all has been written that does not come after it:
until then its PE need not have looked. This is looked at for waits for one word, or for each of
several; not for those that one of several words can end.

What a block of the same launch is to write comes if that block runs. A GPU begins a block when
there is room, so a block that waits may keep the other from its place, unless the launch is
collective or the wait comes after something that the other has done.
Source: CUDA C++ Programming Guide, "Thread Hierarchy": blocks may run in any order, or in series.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from gpushmem.check.accesses import Access, as_one
from gpushmem.check.calls import Call
from gpushmem.check.conditions import Write
from gpushmem.check.history import History
from gpushmem.check.synchronization import Update
from gpushmem.check.vector_clock import CALLED, Bit
from gpushmem.simt.observe import STORE

__all__ = ["Confused", "Missed", "NotResident", "confused", "missed", "not_resident"]


class Missed(NamedTuple):
    """A write, a wait that it may keep from ending, and how often there are such."""

    write: Access
    wait: Access
    element: int  # of the wait's array
    unordered: str  # the line of what the wait is for, if its PE may do the write before that
    seen: int


class NotResident(NamedTuple):
    """A write, and a wait for it in a block that may keep that of the write from running."""

    write: Access
    wait: Access
    element: int
    seen: int


class Confused(NamedTuple):
    """A write of a flag, a wait that may take other data for it, and how often there are such."""

    write: Access
    wait: Access
    element: int
    seen: int


def missed(history: History) -> list[Missed]:
    """All of them, those of the same two lines as one."""
    return as_one(_all(history), _lines, _place)


def not_resident(history: History) -> list[NotResident]:
    """All of them, those of the same two lines as one."""
    by_call = _by_call(history)
    found = []
    for call, element, where, write in history.waits.not_resident:
        wait = _of_loop(call, where) if isinstance(call, Update) else by_call[_name(call)]
        found.append(NotResident(_write(by_call, write, where, wait.size), wait, element, 1))
    return as_one(found, _lines, _place)


def confused(history: History) -> list[Confused]:
    """All of them, those of the same two lines as one."""
    by_call = _by_call(history)
    found = []
    for call, element, where, write in history.waits.confused:
        wait = by_call[_name(call)]
        found.append(Confused(_write(by_call, write, where, wait.size), wait, element, 1))
    return as_one(found, _lines, _place)


def _lines(one: Missed | NotResident | Confused) -> tuple[str, str]:
    return one.write.site, one.wait.site


def _place(one: Missed | NotResident | Confused) -> tuple[Any, ...]:
    """Where it is."""
    return tuple((a.pe, a.launch, a.thread, a.when, a.start) for a in (one.write, one.wait))


def _all(history: History) -> Iterator[Missed]:
    by_call = _by_call(history)
    unclear: dict[Any, bool] = {}
    for call, element, where, (by, wanted) in history.waits.missed:
        wait = by_call[_name(call)]
        if where not in unclear:
            unclear[where] = _is_unclear(history, where, wait.size)
        if unclear[where]:
            continue
        write = _write(by_call, by, where, wait.size)
        unordered = ""
        if wanted is not None and isinstance(wanted.call, Call) and not by.after(wanted):
            unordered = wanted.call.site if wanted.call.by == write.pe else ""
        yield Missed(write, wait, element, unordered, 1)


def _is_unclear(history: History, where: Any, size: int) -> bool:
    """Whether there are writes to a word whose values are not known."""
    space, start = where
    copies = [a for a in history.accesses if a.op is not None and a.writes and not a.atomic]
    for a in (*copies, *history.exposed):
        if a.space == space and a.low < start + size and start < a.end:
            return True
    for pe in history.pes.values():
        rows = pe.plain
        rows = rows[(rows["how"] == STORE) & (rows["valued"] == 0)]
        here = rows[(rows["low"] < start + size) & (rows["end"] > start)]
        if any(pe.space(number, 0) == space for number in np.unique(here["space"]).tolist()):
            return True
    return False


def _by_call(history: History) -> dict[Bit, Access]:
    """What operations do to words that are waited for, by their calls: to the first of several."""
    accesses = reversed(history.accesses)
    return {_name(a.call): a for a in accesses if a.call is not None and a.atomic}


def _name(call: Call) -> Bit:
    """What a call has to itself, each time that the logs are gone through."""
    return call.over(CALLED)


def _write(by_call: dict[Bit, Access], write: Write, where: Any, size: int) -> Access:
    """A write to a word, of this size."""
    by = write.call
    if not isinstance(by, Update):
        return by_call[_name(by)]
    return _access(by, where, size, True)


def _of_loop(by: Update, where: Any) -> Access:
    """What a loop looks at."""
    return _access(by, where, 1, False)


def _access(by: Update, where: Any, size: int, writes: bool) -> Access:
    """What is no operation does to a word."""
    space, start = where
    return Access(
        space, start, size, 0, 1, writes, True, by.pe, by.launch, by.thread, 0, by.when, by.site,
        None, None, None, by.clock, 0,
    )  # fmt: skip
