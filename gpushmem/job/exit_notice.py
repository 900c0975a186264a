"""Tells the job that a PE ends, and whether it failed, if gpushmem's launcher does not monitor it.

Our launcher sees its PEs end, with their exit status. A PE started by another launcher reports its
own end, and the exception that caused it; if it cannot, because it is killed, another PE notices
(`diagnosis/termination`).
"""

from __future__ import annotations

import atexit
import os
import sys
import traceback
from types import TracebackType

from gpushmem.job.board import FAILED
from gpushmem.job.job import Job

__all__ = [
    "failed",
    "interrupted",
    "note_exceptions",
    "note_failure",
    "reason_of",
    "tell_the_others",
]

_told: set[int] = set()  # descriptors of boards that are told of this process's end
_state = {"failed": False, "interrupted": False, "notes": False}


def failed() -> bool:
    """Whether this process is ending because it failed.

    Its exit handlers must then not wait for the other PEs: they may be waiting for this one.
    """
    return _state["failed"]


def interrupted() -> bool:
    """Whether this process is ending because of Ctrl-C, which has cancelled its launches."""
    return _state["interrupted"]


def note_failure(interrupted: bool = False) -> None:
    """Record that this process has failed, or was interrupted, and is about to end."""
    _state["failed"], _state["interrupted"] = True, interrupted


def note_exceptions() -> None:
    """Count an uncaught exception as a failure of this process; may be called repeatedly."""
    if _state["notes"]:
        return
    _state["notes"], previous = True, sys.excepthook

    def on_exception(
        kind: type[BaseException], error: BaseException, tb: TracebackType | None
    ) -> None:
        try:
            previous(kind, error, tb)
        finally:
            note_failure(issubclass(kind, KeyboardInterrupt))

    sys.excepthook = on_exception


def tell_the_others(job: Job) -> None:
    """Report the end of this process on the job's board; may be called repeatedly."""
    board = job.board
    if board["launcher"] or job.n_pes == 1 or job.board_fd in _told:
        return
    _told.add(job.board_fd)
    previous, process = sys.excepthook, os.getpid()

    def on_exception(
        kind: type[BaseException], error: BaseException, tb: TracebackType | None
    ) -> None:
        if os.getpid() == process:  # not in a forked child
            board.claim(FAILED, job.my_pe, reason_of(error))
        previous(kind, error, tb)

    def at_exit() -> None:
        if os.getpid() == process:
            board.mark_ended(job.my_pe, 0)

    sys.excepthook = on_exception
    atexit.register(at_exit)


def reason_of(error: BaseException) -> str:
    """Format an exception in one line, with the source line that raised it."""
    text = traceback.format_exception_only(error)[-1].strip()
    frames = traceback.extract_tb(error.__traceback__)
    return f"{text} ({frames[-1].filename}:{frames[-1].lineno})" if frames else text
