"""A line on a terminal that says what is compiled, where that takes more than a second."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

__all__ = ["compiling", "go_on"]

LONG = 1.0  # seconds
_now: list[tuple[float, str]] = []  # when it began, what: empty once that has been said


@contextmanager
def compiling(what: str) -> Iterator[None]:
    """Say that `what` is compiled inside, if a later `go_on` finds that it takes long."""
    if _now:  # for something else, which says so
        yield
        return
    _now.append((time.monotonic(), what))
    try:
        yield
    finally:
        _now.clear()


def go_on() -> None:
    """Between two steps. No thread is to say it: with one, a PE is never known to be stuck."""
    for began, what in [*_now]:
        if time.monotonic() - began < LONG:
            return
        _now.clear()
        with suppress(Exception):  # stderr may be closed
            if sys.stderr.isatty():
                sys.stderr.write(f"gpushmem: compiling {what} ...\n")
                sys.stderr.flush()
