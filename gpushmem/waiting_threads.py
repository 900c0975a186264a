"""The Python threads that wait, to find out whether anything can make progress.

A thread that waits is *parked*: it records what it waits for, and how to test for it. If `moves`
is unchanged between two looks, the same threads have been parked all the time. A signal handler or
a finalizer may run on top of a wait: a parked thread is *at rest* if none does.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import CodeType, FrameType, TracebackType
from typing import Any

__all__ = [
    "TURN",
    "Parked",
    "acts_for",
    "block_signals",
    "help_others",
    "hosts",
    "moves",
    "parked",
    "restless",
]

TURN = 0.02  # seconds between two looks at signals


@dataclass(eq=False)
class Parked(AbstractContextManager["Parked"]):
    """A thread's wait: `with Parked(...)` around it."""

    what: str
    ready: Callable[[], bool]  # whether what it waits for has come
    launch: Callable[[], Any] = lambda: None  # the run of a launch in it, which knows more
    worker: bool = False  # a stream's own thread, not listed in reports
    since: float = field(default_factory=time.monotonic)
    turns: int = 0  # how often the thread was back in Python, where signal handlers run
    _frame: FrameType | None = None  # of the wait

    def __enter__(self) -> Parked:
        self._frame = sys._getframe(1)
        self._tell(1)
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
        self._tell(-1)
        _move()
        self._frame = None
        if self._outer is None:
            del parked[threading.get_ident()]
        else:  # a signal handler waited while its thread did
            parked[threading.get_ident()] = self._outer

    def _tell(self, number: int) -> None:
        if on_wait is not None and threading.current_thread() is threading.main_thread():
            on_wait(number)

    def until(self, come: Callable[[], object]) -> None:
        """Wait until `come()` is true, C code that waits for at most TURN."""
        while not come():
            self.turns += 1

    def at_rest(self, frame: FrameType | None) -> bool:
        """Whether nothing runs on top of the wait; `frame` is the thread's innermost."""
        while frame is not None and frame.f_code in WAITING:
            frame = frame.f_back
        return frame is not None and frame is self._frame


# Functions that call the system to wait.
WAITING = {
    function.__code__ for function in (Parked.until, threading.Event.wait, threading.Condition.wait)
}

on_wait: Callable[[int], None] | None = None  # called with 1, -1 as the main thread's waits go
parked: dict[int, Parked] = {}  # thread -> its wait
acts_for: dict[int, tuple[CodeType, int]] = {}  # thread -> the place of the call that it makes
_moves = 0


def _after_fork() -> None:
    """In a forked child, which has none of the parent's threads."""
    parked.clear()
    acts_for.clear()
    _helpers.clear()


os.register_at_fork(after_in_child=_after_fork)


def _move() -> None:
    global _moves  # noqa: PLW0603
    _moves += 1


def moves() -> int:
    """How often threads have begun or ended a wait."""
    return _moves


_helpers: set[int] = set()  # threads that only act for others, which wait for them


def help_others() -> None:
    """Declare that the calling thread only acts for another one, which waits for it."""
    _helpers.add(threading.get_ident())


def block_signals() -> None:
    """Leave signals to the main thread: a handler must not run on a fiber's small stack."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGUSR1})


def hosts() -> list[tuple[int, Parked]]:
    """The waits of the user's threads; those of streams' own threads show in their launches."""
    return [(ident, wait) for ident, wait in list(parked.items()) if not wait.worker]


def restless() -> set[int]:
    """The threads that run Python and are not known to wait for the engine, helpers excepted."""
    waits = parked.copy()
    return {
        ident
        for ident, frame in sys._current_frames().items()
        if ident not in _helpers and (ident not in waits or not waits[ident].at_rest(frame))
    }
