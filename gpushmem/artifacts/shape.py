"""A launch's grid and block, checked against CUDA's limits."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

from gpushmem.arguments import integer, shown
from gpushmem.errors import ArgumentError

__all__ = ["AXES", "LIMITS", "MAX_THREADS", "LaunchShape", "shape_of"]

MAX_THREADS = 1024  # in a block
AXES = ("x", "y", "z")
LIMITS = {"grid": (2**31 - 1, 65535, 65535), "block": (1024, 1024, 64)}

Dim = tuple[int, ...]


class LaunchShape:
    """A checked launch configuration: grid, block, dynamic shared bytes."""

    def __init__(self, grid: Any, block: Any, dynamic_shared: int = 0) -> None:
        self.grid, self.block = _dim("grid", grid), _dim("block", block)
        self.dynamic_shared = integer("dynamic shared memory", dynamic_shared)
        self.threads = math.prod(self.block)
        if self.threads > MAX_THREADS:
            raise ArgumentError(
                f"a block of {' x '.join(map(str, self.block))} has {self.threads} threads; "
                f"at most {MAX_THREADS} are possible: use more, smaller blocks"
            )
        if self.dynamic_shared < 0:
            raise ArgumentError(
                f"dynamic shared memory must be 0 bytes or more, not {self.dynamic_shared}"
            )


def shape_of(grid: Any, block: Any, dynamic_shared: int = 0) -> LaunchShape:
    """Check a launch configuration; raises `ArgumentError` naming the value and the limit."""
    try:
        return _shape_of(grid, block, dynamic_shared)
    except ArgumentError:
        raise
    except Exception:  # noqa: BLE001  (a list, say, which cannot be remembered)
        return LaunchShape(grid, block, dynamic_shared)


_shape_of = lru_cache(maxsize=1024, typed=True)(LaunchShape)


def _dim(what: str, value: Any) -> Dim:
    parts = tuple(value) if isinstance(value, tuple | list) else (value,)
    try:
        sizes = tuple(integer(what, p) for p in parts)
    except ArgumentError:
        raise ArgumentError(
            f"{what} must be an int or a tuple of up to 3 ints, not {shown(value)}"
        ) from None
    if not 1 <= len(sizes) <= 3:
        raise ArgumentError(f"{what} must have 1 to 3 dimensions, not {len(sizes)}: {shown(value)}")
    for size, limit, axis in zip(sizes, LIMITS[what], AXES, strict=False):
        if not 1 <= size <= limit:
            raise ArgumentError(f"{what} dimension {axis} is {size}; it must be 1 to {limit}")
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z
