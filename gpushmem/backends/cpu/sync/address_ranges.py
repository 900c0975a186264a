"""Ranges of addresses that other threads look up while they change."""

from __future__ import annotations

import numpy as np

from gpushmem.artifacts.argument_packing import address_of
from gpushmem.native.memory import load_acquire

__all__ = ["Ranges", "held"]

FEW = 64  # rows of the first table


class Ranges:
    """Ranges, in a table: the number of its rows, then start and end of each.

    A row's end is set last, and cleared first. A larger table replaces a full one, which stays:
    threads may be reading it.
    """

    def __init__(self) -> None:
        self._rows: list[tuple[int, int] | None] = []
        self._tables = [np.zeros(1 + 2 * FEW, np.int64)]
        self._place = np.array([address_of(self._tables[0])], np.int64)

    @property
    def address(self) -> int:
        """For `held`: where the table's address is."""
        return address_of(self._place)

    def add(self, start: int, end: int) -> None:
        """Add a range."""
        row = self._rows.index(None) if None in self._rows else len(self._rows)
        self._rows[row : row + 1] = [(start, end)]
        table = self._tables[-1]
        if 2 + 2 * row > len(table):
            self._tables.append(np.append(table, np.zeros(len(table) - 1, np.int64)))
            table = self._tables[-1]
        table[1 + 2 * row] = start
        table[2 + 2 * row] = end
        table[0] = len(self._rows)
        self._place[0] = address_of(table)

    def remove(self, start: int, end: int) -> None:
        """Remove one that has been added."""
        row = self._rows.index((start, end))
        self._rows[row] = None
        self._tables[-1][2 + 2 * row] = 0

    def hold(self, start: int, end: int) -> bool:
        """Whether one of them contains all from `start` to `end`."""
        return any(row is not None and row[0] <= start and end <= row[1] for row in self._rows)


def held(ranges: int, start: int, end: int) -> bool:
    """The same in code to be compiled; `ranges` is their `address`."""
    table = load_acquire(ranges)
    for k in range(load_acquire(table)):
        row = table + 8 + 16 * k
        low, high = load_acquire(row), load_acquire(row + 8)
        if low <= start and end <= high and load_acquire(row) == low:  # not half of another range
            return True
    return False
