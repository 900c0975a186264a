"""Arrays in kernels: NumPy's, of which each element that is read is a number of `numbers`.

A thread that reads one element again and again waits for another thread to change it, and gives way
(`threads`).
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from greenlet import getcurrent

from gpushmem.simt.interpret.numbers import FLOATS, READ, fitted, number
from gpushmem.simt.interpret.threads import Fiber

__all__ = ["Array", "array_at", "fresh", "in_kernel", "record_at"]

getitem, setitem = np.ndarray.__getitem__, np.ndarray.__setitem__
POISON = 0xFF  # bytes of memory that nobody has written: NaN, or -1


class Record(np.record):  # type: ignore[misc]
    """A record, whose fields are numbers as elements are."""

    def __getattribute__(self, name: str) -> Any:
        return number(super().__getattribute__(name))

    def __getitem__(self, name: Any) -> Any:
        return number(super().__getitem__(name))


class Array(np.ndarray[Any, Any]):
    """An array as kernels see it. An index below zero counts from the end, as in Numba."""

    def __getitem__(self, index: Any) -> Any:
        value = getitem(self, index)
        make = READ.get(value.__class__)
        if make is not None:
            value = make(value)
        looked_at(self, index)
        return value

    def __setitem__(self, index: Any, value: Any) -> None:
        if isinstance(value, FLOATS) and self.dtype.kind in "iu":
            value = fitted(value, self.dtype)
        try:
            setitem(self, index, value)
        except OverflowError:
            setitem(self, index, fitted(value, self.dtype))

    def item(self, *index: Any) -> Any:
        """The element."""
        return self[index or (0,) * self.ndim]


def looked_at(array: Any, index: Any) -> None:
    """Note that the thread has read an element; it gives way if it does nothing else."""
    fiber = getcurrent()
    if fiber.__class__ is not Fiber:  # a debugger, when the kernel has failed
        return
    fiber.looks(array, index)


def in_kernel(array: np.ndarray[Any, Any]) -> Any:
    """A NumPy array as kernels see it."""
    if array.dtype.names:
        array = array.view(np.dtype((Record, array.dtype)))
    return array.view(Array)


def array_at(address: int, shape: Any, strides: Any, dtype: np.dtype[Any]) -> Any:
    """The array in memory at an address."""
    interface = {
        "data": (address, False), "shape": tuple(shape), "typestr": f"|V{dtype.itemsize}",
        "strides": strides and tuple(strides), "version": 3,
    }  # fmt: skip
    raw = np.asarray(SimpleNamespace(__array_interface__=interface))
    return in_kernel(raw.view(dtype))


def record_at(address: int, dtype: np.dtype[Any]) -> Any:
    """The record in memory at an address."""
    return getitem(array_at(address, (), (), dtype), ())


def fresh(shape: Any, dtype: np.dtype[Any]) -> Any:
    """An array in memory that nobody has written."""
    shape = tuple(map(int, shape)) if isinstance(shape, tuple | list) else (int(shape),)
    count = int(np.prod(shape, dtype=np.int64))
    memory = np.full(count * dtype.itemsize, POISON, np.uint8)
    return in_kernel(memory.view(dtype).reshape(shape))
