"""Work in a copy of this process: what can be done meanwhile, and is found in the store."""

from __future__ import annotations

import os
import select
import signal
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress

from gpushmem import disk

__all__ = ["beside", "fork"]

NICE = 10


def fork() -> int:
    """`os.fork()`, without Python's warning about threads.

    They are idle worker pools of numerical libraries, which handle a fork themselves.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def beside(work: Callable[[], object]) -> None:
    """Call `work` in a copy of this process, which ends when this one does, at the latest.

    What it prints is lost, and so is an error. It is no child of this process, which need not wait
    for it; locks that other threads hold now stay locked in it for ever.
    """
    ours = os.getpid()
    child = fork()
    if child:
        with suppress(ChildProcessError):  # somebody else waits for all children
            os.waitpid(child, 0)
        return
    try:
        if os.fork() == 0:
            _settle(ours)
            work()
    finally:
        os._exit(0)


def _settle(original: int) -> None:
    """Let go of the original's files and signals; watch it."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in range(3):
        os.dup2(null, fd)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    disk.speak(False)
    os.nice(NICE)
    try:
        watched = os.pidfd_open(original)
    except ProcessLookupError:  # it has ended
        os._exit(0)
    threading.Thread(target=_end_with, args=(watched,), daemon=True).start()


def _end_with(watched: int) -> None:
    select.select([watched], [], [])
    os._exit(0)
