"""Python's collector of garbage, where many objects are made of which few are garbage."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["seldom_collected"]

OBJECTS = 100_000  # between two collections


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Within, garbage is collected seldom: imports and compilations would spend an eighth on it.

    What the user has set holds again afterwards; who has switched collections off keeps that.
    """
    before = gc.get_threshold()
    if not 0 < before[0] < OBJECTS:
        yield
        return
    gc.set_threshold(OBJECTS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
