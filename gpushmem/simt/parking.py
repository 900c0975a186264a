"""Which Python threads wait for the engine, for those who want to know whether anything can move.

A thread that waits is *parked*: it says for what, and how one sees that it may go on. Between two
looks that find `moves` unchanged, the same threads have been parked all the time.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

__all__ = ["Parked", "all_parked", "help_others", "hosts", "moves", "parked"]


@dataclass(eq=False)
class Parked(AbstractContextManager["Parked"]):
    """A thread's wait: `with Parked(...)` around it."""

    what: str
    ready: Callable[[], bool]  # whether what it waits for has come
    launch: Any = None  # the launch that it runs, which knows more
    worker: bool = False  # a stream's, of which people need not hear
    since: float = field(default_factory=time.monotonic)

    def __enter__(self) -> Parked:
        self._outer = parked.get(threading.get_ident())
        _move()
        parked[threading.get_ident()] = self
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        _move()
        if self._outer is None:
            del parked[threading.get_ident()]
        else:  # a signal handler waited while its thread did
            parked[threading.get_ident()] = self._outer


parked: dict[int, Parked] = {}  # thread -> what it waits for
_moves = 0


def _after_fork() -> None:
    """In the child, where the parent's threads are not."""
    parked.clear()
    _helpers.clear()


os.register_at_fork(after_in_child=_after_fork)


def _move() -> None:
    global _moves  # noqa: PLW0603
    _moves += 1


def moves() -> int:
    """How often threads have begun or ended to wait."""
    return _moves


_helpers: set[int] = set()  # threads that act only for others, which wait for them


def help_others() -> None:
    """Say that the calling thread only does what another one waits for."""
    _helpers.add(threading.get_ident())


def hosts() -> list[tuple[int, Parked]]:
    """The user's threads that wait; what streams' own threads do is told by their launches."""
    return [(ident, wait) for ident, wait in list(parked.items()) if not wait.worker]


def all_parked() -> bool:
    """Whether all threads that run Python wait for the engine, helpers excepted."""
    return sys._current_frames().keys() <= parked.keys() | _helpers
