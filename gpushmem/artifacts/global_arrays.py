"""Arrays that a kernel names, as globals or in closures, and does not get as arguments.

One in device memory, the symmetric heap's included, is a reference to that memory, as in
numba-cuda; one of NumPy's elsewhere is a constant, with the values of when the kernel was compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["Named", "named", "places"]

# Each gives the memory of an array as one of NumPy's, if the array is in device memory; else None.
places: list[Callable[[Any], Any]] = []


class Named:
    """An array in device memory, as numba-cuda wants to see it: it then embeds the address."""

    def __init__(self, array: Any, memory: Any) -> None:
        self.array = array  # which has to live as long as the kernel
        self.__cuda_array_interface__ = {**memory.__array_interface__, "version": 3}


def named(value: Any) -> Any:
    """What a kernel sees that names `value`: the same, with arrays in device memory as `Named`."""
    if isinstance(value, tuple):
        items = [named(item) for item in value]
        if all(new is old for new, old in zip(items, value, strict=True)):
            return value
        return tuple(items) if type(value) is tuple else type(value)(*items)
    memories = (place(value) for place in places)
    memory = next((found for found in memories if found is not None), None)
    return value if memory is None else Named(value, memory)
