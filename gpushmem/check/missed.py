"""Waits that may never end: what they wait for may be replaced before it is seen.

A wait is sure to end if its condition holds when all has been written that does not come after it:
until then its PE need not have looked. This is looked at for waits for one word, or for each of
several; not for those that one of several words can end.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from gpushmem.check.accesses import Access, as_one
from gpushmem.check.calls import Call
from gpushmem.check.conditions import Write
from gpushmem.check.history import History
from gpushmem.check.waits import Update
from gpushmem.simt.compiler.observer import STORE

__all__ = ["Missed", "missed"]


class Missed(NamedTuple):
    """A write, a wait that it may keep from ending, and how often there are such."""

    write: Access
    wait: Access
    element: int  # of the wait's array
    unordered: str  # the line of what the wait is for, if its PE may do the write before that
    seen: int


def missed(history: History) -> list[Missed]:
    """All of them, those of the same two lines as one."""
    return as_one(_all(history), lambda one: (one.write.site, one.wait.site), _place)


def _place(one: Missed) -> tuple[Any, ...]:
    """Where it is."""
    return tuple((a.pe, a.launch, a.thread, a.when, a.start) for a in (one.write, one.wait))


def _all(history: History) -> Iterator[Missed]:
    by_call = {id(a.call): a for a in history.accesses if a.call is not None and a.atomic}
    unclear: dict[Any, bool] = {}
    for call, element, where, (by, wanted) in history.waits.missed:
        wait = by_call[id(call)]
        if where not in unclear:
            unclear[where] = _is_unclear(history, where, wait.size)
        if unclear[where]:
            continue
        if isinstance(by.call, Update):
            write = _of_update(by, where, wait.size)
        else:
            write = by_call[id(by.call)]
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


def _of_update(write: Write, where: Any, size: int) -> Access:
    space, start = where
    by = write.call
    return Access(
        space, start, size, 0, 1, True, True, by.pe, by.launch, by.thread, 0, by.when, by.site,
        None, None, None, by.clock, write.stamp,
    )  # fmt: skip
