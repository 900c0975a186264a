"""Accesses of kernels outside of all arrays: to symmetric memory, and beside arrays of the device.

While a job is checked there is a gap behind each symmetric array (`backends.base.GAP`), so that
what runs past the end of one does not reach the next; and before and behind each of the device's,
whose other memory, such as constants, is not known.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from gpushmem.check.accesses import LOCAL, Access
from gpushmem.check.history import History
from gpushmem.check.pe_memory import Pe

__all__ = ["Outside", "outside"]


class Outside(NamedTuple):
    """An access outside of all arrays, and how often there are such at this line."""

    access: Access
    thread: int
    place: int  # the first byte outside
    seen: int


def outside(history: History) -> list[Outside]:
    """All of them, those of one line as one."""
    found: dict[Any, Outside] = {}
    for access, element, place in _all(history):
        key = access.site, access.op and access.op.name, access.writes
        if key in found:
            found[key] = found[key]._replace(seen=found[key].seen + 1)
        else:
            found[key] = Outside(access, access.thread + access.step * element, place, 1)
    return list(found.values())


def _all(history: History) -> Iterator[tuple[Access, int, int]]:
    yield from _symmetric(history)
    for pe in history.pes.values():
        if pe.memories:
            yield from _beside(history, pe)


def _beside(history: History, pe: Pe) -> Iterator[tuple[Access, int, int]]:
    """Accesses in the gaps beside the arrays of the device."""
    arrays = _Arrays([[m["memory"], m["bytes"]] for m in pe.memories])
    near = _Arrays([[m["memory"] - m["guard"], m["bytes"] + 2 * m["guard"]] for m in pe.memories])
    rows = pe.plain[pe.plain["space"] == LOCAL]
    bad = near.hold(rows["low"], rows["low"]) & ~arrays.hold(rows["low"], rows["end"])
    for row in rows[bad]:
        yield from _first(arrays, history.access(pe.pe, row))


def _symmetric(history: History) -> Iterator[tuple[Access, int, int]]:
    of_lists = {pe.pe: [_Arrays(live) for live in pe.live] for pe in history.pes.values()}
    for pe in history.pes.values():
        rows = pe.plain
        rows = rows[rows["space"] >= 0]
        for number in np.unique(rows["launch"]).tolist():
            here = rows[rows["launch"] == number]
            arrays = of_lists[pe.pe][pe.launches[number].live]
            for row in here[~arrays.hold(here["low"], here["end"])]:
                yield from _first(arrays, history.access(pe.pe, row))
    for access in history.accesses:
        if access.launch and access.space[0] == "heap":
            launch = history.pes[access.pe].launches[access.launch]
            arrays = of_lists[access.pe][launch.live]
            if not arrays.hold(access.low, access.end):
                yield from _first(arrays, access)


def _first(arrays: _Arrays, access: Access) -> Iterator[tuple[Access, int, int]]:
    """The first element of a run that is outside: its ends may be in two arrays."""
    starts = access.start + access.stride * np.arange(access.times)
    bad = np.flatnonzero(~arrays.hold(starts, starts + access.size))
    if len(bad):
        element = int(bad[0])
        yield access, element, arrays.end_before(int(starts[element]), access.size)


class _Arrays:
    """The arrays that there are, as (offset, bytes)."""

    def __init__(self, live: list[list[int]]) -> None:
        arrays = np.array(sorted(live), np.int64).reshape(-1, 2)
        # Nothing is before the first.
        self._starts = np.concatenate([[np.iinfo(np.int64).min], arrays[:, 0]])
        self._ends = np.concatenate([[np.iinfo(np.int64).min], arrays.sum(axis=1)])

    def hold(self, low: Any, end: Any) -> Any:
        """Whether what is from `low` to `end` is in one of them."""
        return end <= self._ends[np.searchsorted(self._starts, low, "right") - 1]

    def end_before(self, start: int, size: int) -> int:
        """The first byte, of `size` from `start`, that is in none of them."""
        end = int(self._ends[np.searchsorted(self._starts, start, "right") - 1])
        return end if start < end < start + size else start
