"""Work in a copy of this process: what can be done meanwhile, and is found in the store.

Such copies act for this process. Children that its users fork do not; what these are to forget is
said to `children_of_users`.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress

from gpushmem import cache_files

__all__ = ["beside", "children_of_users", "fork"]

MOST_SECONDS = 600.0


_forking = threading.local()  # has `copy` where this module forks


def children_of_users(forget: Callable[[], object]) -> None:
    """Call `forget` in each child that is forked from now on, other than by `fork`."""
    os.register_at_fork(after_in_child=lambda: hasattr(_forking, "copy") or forget())


def fork() -> int:
    """`os.fork()` of a copy that acts for this process, without Python's warnings about threads.

    They are idle worker pools of numerical libraries, which handle a fork themselves. JAX, which
    warns as well, is not used in the copy.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.filterwarnings("ignore", ".* JAX is multithreaded", RuntimeWarning)
        _forking.copy = True
        try:
            return os.fork()
        finally:
            del _forking.copy


def beside(work: Callable[[], object], nice: int = 0) -> None:
    """Call `work` in a copy of this process, which ends when this one does, at the latest.

    What it prints is lost, and so is an error. It is no child of this process, which need not wait
    for it; locks that other threads hold now stay locked in it, so it ends after MOST_SECONDS in
    any case. Where the system allows no more processes, nothing is done.
    """
    ours = os.getpid()
    try:
        child = fork()
    except (OSError, RuntimeError):  # a limit; Python is ending
        return
    if child:
        with suppress(ChildProcessError):  # somebody else waits for all children
            os.waitpid(child, 0)
        return
    try:
        if fork() == 0:
            _settle(ours, nice)
            work()
    finally:
        os._exit(0)


def _settle(original: int, nice: int) -> None:
    """Let go of the original's signals and files; watch it."""
    gc.freeze()  # or objects of the original's would be ended, and close files of this one's
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    os.nice(nice)
    cache_files.speak(False)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in sorted(map(int, os.listdir("/proc/self/fd"))):
        if fd < 3:
            os.dup2(null, fd)
        else:
            with suppress(OSError):  # the folder's own
                os.close(fd)
    try:
        watched = os.pidfd_open(original)
    except ProcessLookupError:  # it has ended
        os._exit(0)
    threading.Thread(target=_end_with, args=(watched,), daemon=True).start()


def _end_with(watched: int) -> None:
    select.select([watched], [], [], MOST_SECONDS)
    os._exit(0)
