"""Usage of the symmetric heap as text: the allocations, and the lines that made them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from gpushmem.size import format_size

__all__ = ["Allocated", "HeapStats", "holders", "leak_report"]

HOLDERS = 5  # source lines named by `holders`
SHOWN = 10  # rows of a table; there may be thousands of arrays


class Allocated(NamedTuple):
    """One array on the heap: position, size, shape, dtype, and the line that allocated it."""

    offset: int  # in bytes, the same on every PE
    nbytes: int  # as requested, before rounding
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    where: str  # "file.py:12"


@dataclass(frozen=True)
class HeapStats:
    """Usage of this PE's symmetric heap at the time of `heap_stats()`; sizes in bytes.

    `total` is the size of the heap, `largest_free` that of the largest free block. `used`, and its
    maximum so far, `peak`, count whole blocks: an array's bytes rounded up to 256, and 256 for an
    empty array. `allocations` are sorted by offset; each has `offset`, `nbytes` (the array's own),
    `shape`, `dtype` and `where`, the line that allocated it, as "file.py:12". `str()` formats a
    small table.
    """

    total: int
    used: int
    peak: int
    largest_free: int
    allocations: tuple[Allocated, ...]

    @property
    def fragmentation(self) -> float:
        """Fraction of the free memory outside the largest free block; 0 if all is in one block."""
        free = self.total - self.used
        return 1 - self.largest_free / free if free else 0.0

    def __str__(self) -> str:
        count = len(self.allocations)
        return (
            f"symmetric heap: {format_size(self.used)} of {format_size(self.total)} used by "
            f"{_arrays(count)}, at most {format_size(self.peak)} so far; largest free block "
            f"{format_size(self.largest_free)}, fragmentation {self.fragmentation:.0%}"
        ) + _table(self.allocations)


def leak_report(left: tuple[Allocated, ...]) -> str:
    """Format the warning of `finalize` about arrays that were never freed."""
    nbytes = sum(a.nbytes for a in left)
    return f"finalize: {_arrays(len(left))} never freed, {nbytes} bytes in all" + _table(left)


def holders(allocated: tuple[Allocated, ...]) -> str:
    """List the source lines that hold most of the heap; empty if nothing is allocated."""
    by_line: dict[str, list[int]] = {}
    for made in allocated:
        by_line.setdefault(str(made.where), []).append(made.nbytes)
    most = sorted(by_line.items(), key=lambda item: -sum(item[1]))
    lines = [
        f"\n  {format_size(sum(sizes)):>10} in {_arrays(len(sizes))}, allocated at {where}"
        for where, sizes in most[:HOLDERS]
    ]
    more = len(most) - HOLDERS
    rest = f"\n  and {more} more line{'' if more == 1 else 's'}" if more > 0 else ""
    return ("\nLargest users:" + "".join(lines) + rest) if lines else ""


def _arrays(count: int) -> str:
    return f"{count} symmetric array{'' if count == 1 else 's'}"


def _table(allocated: tuple[Allocated, ...]) -> str:
    """Format a heading and one row each for the first few; empty for none."""
    if not allocated:
        return ""
    cells = [("offset", "bytes", "shape", "dtype", "allocated at")] + [
        (f"{a.offset:#x}", str(a.nbytes), str(a.shape), str(a.dtype), a.where)
        for a in allocated[:SHOWN]
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        f"\n  {offset:>{widths[0]}}  {nbytes:>{widths[1]}}  {shape:<{widths[2]}}  "
        f"{dtype:<{widths[3]}}  {where}"
        for offset, nbytes, shape, dtype, where in cells
    ]
    more = len(allocated) - SHOWN
    return "".join(lines) + (f"\n  and {more} more" if more > 0 else "")
