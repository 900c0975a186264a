"""What arrays this PE has, and at which line each was made: for reports and errors to name them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from gpushmem.artifacts.argument_packing import address_of
from gpushmem.source_lines import Line, assigned_name, user_line

__all__ = ["Arrays", "Found"]


class Found(NamedTuple):
    """An array, and the element of it that is at some address."""

    kind: str
    where: Any  # the `Line` that made it
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    element: int  # its number

    @property
    def name(self) -> str | None:
        """What its maker called it, if that is known."""
        return assigned_name(self.where)

    def __str__(self) -> str:
        at = f"[{self.element}:]" if self.element and len(self.shape) == 1 else ""
        called = f" `{self.name}{at}`" if self.name else ""
        return f"{self.kind}{called} ({self.dtype}, shape {self.shape}) allocated at {self.where}"


class _Local(NamedTuple):
    """Memory that is not symmetric."""

    array: weakref.ref[np.ndarray[Any, Any]]
    kind: str
    where: Line


class Arrays:
    """The arrays of one PE. `allocated` gives what is on the heap (`memory.stats`)."""

    def __init__(self) -> None:
        self.heap = 0  # address of this PE's segment; 0 until it is mapped
        self.allocated: Callable[[], Sequence[Any]] = list
        self._local: dict[int, _Local] = {}

    def note(self, array: np.ndarray[Any, Any], kind: str) -> None:
        """Know an array in local memory, as long as it lives."""
        address = address_of(array)
        gone = weakref.ref(array, lambda _: self._local.pop(address, None))
        self._local[address] = _Local(gone, kind, user_line())

    def at(self, address: int) -> Found | None:
        """The array that an address is in, or just after."""
        before = self.symmetric_at(address) or self.symmetric_at(address - 1, after=True)
        return before or self._at(address)

    def symmetric_at(self, address: int, *, after: bool = False) -> Found | None:
        """The array on the heap that an address is in; `after`: the element after that one."""
        offset = address - self.heap
        for made in self.allocated():
            if made.offset <= offset < made.offset + max(made.nbytes, 1):
                index = (offset - made.offset) // made.dtype.itemsize + after
                return Found("the symmetric array", made.where, made.dtype, made.shape, index)
        return None

    def _at(self, address: int) -> Found | None:
        for start, local in list(self._local.items()):
            array = local.array()
            if array is not None and start <= address <= start + array.nbytes:
                index = (address - start) // max(array.itemsize, 1)
                return Found(local.kind, local.where, array.dtype, array.shape, index)
        return None
