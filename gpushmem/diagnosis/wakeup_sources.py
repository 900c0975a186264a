"""What may move in a process whose threads all wait: its timers, its signals, native threads.

Linux tells of each thread what system call it is in. One that runs, or sleeps until a time of its
own choice, may move; one that waits for something else (a lock, a file) moves when that comes, and
so after whoever brings it. The idle pools of numerical libraries wait for locks.

A thread of Python's that is in no wait of ours must wait for a lock of this process, without a
limit: in `Lock.acquire`, `Thread.join`, or in C++, as PyTorch does for a future. Only another
thread of the process can end that. (One that waits for the interpreter does so with a limit.) While
there is such a thread, native ones that read a file may be at work for it; those that wait for
events, such as the server of PyTorch's store, are not taken to be.
"""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

__all__ = ["alarmed", "blocked", "others"]

TASKS = "/proc/self/task"
SIGNALS = re.compile(rb"^(?:SigPnd|ShdPnd|SigBlk):\s*(\w+)", re.MULTILINE)  # in this order
SWITCHES = re.compile(rb"^\w+_ctxt_switches:\s*(\d+)", re.MULTILINE)
TIMERS = signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF
LONG = 600_000  # milliseconds: who waits for events so long, as MPI's threads do, waits for these

Words = list[int]  # the arguments of a system call
FUTEX, FUTEX_WAITS = 202, (0, 9)  # FUTEX_WAIT and FUTEX_WAIT_BITSET, behind the flags
PRIVATE = 0x80  # the flag of a lock of one process
# What native threads may be in while one of Python's waits for a lock: that, poll, epoll.
IDLE = {FUTEX, 7, 232, 271, 281, 441}


def _pointer(k: int) -> Callable[[Words], bool]:
    return lambda words: words[k] != 0


def _milliseconds(k: int) -> Callable[[Words], bool]:
    return lambda words: 0 <= words[k] & 0x7FFFFFFF < LONG and not words[k] & 0x80000000


def _always(_: Words) -> bool:
    return True


def _never(_: Words) -> bool:
    return False


# System calls of x86-64 that may end by time -> whether this one does.
TIMED: dict[int, Callable[[Words], bool]] = {
    7: _milliseconds(2),  # poll
    23: _pointer(4),  # select
    35: _always,  # nanosleep
    128: _pointer(2),  # rt_sigtimedwait
    FUTEX: lambda words: words[1] & 0x7F in FUTEX_WAITS and words[3] != 0,
    219: _always,  # restart_syscall: a sleep that a signal has interrupted
    220: _pointer(3),  # semtimedop
    230: _always,  # clock_nanosleep
    232: _milliseconds(3),  # epoll_wait
    270: _pointer(4),  # pselect6
    271: _pointer(2),  # ppoll
    281: _milliseconds(3),  # epoll_pwait
    441: _pointer(3),  # epoll_pwait2
    449: _pointer(3),  # futex_waitv
}


def alarmed() -> bool:
    """Whether a timer is set, or a signal has been sent and not delivered: a handler may act."""
    if any(signal.getitimer(timer)[0] > 0 for timer in TIMERS):
        return True
    with suppress(OSError):
        if _read("/proc/self/timers"):
            return True
    # Of the main thread, which runs Python's handlers: sent to it, to the process, blocked.
    mine, shared, blocked = (int(mask, 16) for mask in SIGNALS.findall(_status(os.getpid())))
    return bool((mine | shared) & ~blocked)


def others(pythons: set[int]) -> tuple[tuple[Any, ...], ...] | None:
    """Threads that run no Python, and those of `pythons`, and how often each has run.

    None if one may move by itself. While what is returned stays the same, none of them has run.
    """
    known = _pythons()
    if not pythons <= set(known.values()):
        return None  # one that Python's `threading` does not know
    found = []
    for task in sorted(int(name) for name in os.listdir(TASKS)):
        if task in known and known[task] not in pythons:
            continue
        try:
            allowed = {FUTEX} if task in known else IDLE if pythons else None
            if _moves_by_itself(task, allowed):
                return None
            switches = SWITCHES.findall(_status(task))
        except OSError:  # it has just ended
            return None
        found.append((task, *switches))
    return tuple(found)


def blocked(ident: int) -> Any:
    """How often a thread of Python's has run, if it waits for a lock of this process; else None.

    The wait has no limit, and is the same one as long as this number is.
    """
    for task, known in _pythons().items():
        if known == ident:
            with suppress(OSError):
                switches = SWITCHES.findall(_status(task))
                return None if _moves_by_itself(task, {FUTEX}) else switches
    return None


def _pythons() -> dict[int, int]:
    """The threads that Python knows: the system's number of each, and Python's."""
    main = threading.main_thread()  # after a fork, older Pythons have its parent's number
    return {
        (os.getpid() if thread is main else thread.native_id or 0): thread.ident or 0
        for thread in threading.enumerate()
    }


def _moves_by_itself(task: int, allowed: set[int] | None = None) -> bool:
    """Whether a thread runs, or will without others, or is in a call that is not `allowed`."""
    try:
        number, *words = _read(f"{TASKS}/{task}/syscall").split()
    except PermissionError:  # a container that forbids it: then only whether it runs is known
        return allowed == {FUTEX} or b"State:\tR" in _status(task)
    if not number.isdigit():  # "running", or -1 for what is stopped elsewhere
        return True
    arguments = [int(word, 16) for word in words]
    if allowed is not None and int(number) not in allowed:
        return True
    if allowed == {FUTEX} and not arguments[1] & PRIVATE:
        return True
    return TIMED.get(int(number), _never)(arguments)


def _status(task: int) -> bytes:
    return _read(f"{TASKS}/{task}/status")


def _read(file: str) -> bytes:
    with open(file, "rb", buffering=0) as opened:
        return opened.read()
