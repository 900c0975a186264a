"""How the others hear of the end of a PE that no launcher of ours sees to, and whether it failed.

A launcher sees its PEs end, and how. Where another's started them, a PE itself says that it ends,
and which exception ends it; if it cannot, since it is killed, another PE notices (`watch`).
"""

from __future__ import annotations

import atexit
import os
import sys
import traceback
from types import TracebackType

from gpushmem.job.board import FAILED
from gpushmem.job.job import Job

__all__ = ["failed", "note_exceptions", "note_failure", "reason_of", "tell_the_others"]

_told: set[int] = set()  # boards that hear of this process
_state = {"failed": False, "notes": False}


def failed() -> bool:
    """Whether this process ends because it has failed.

    What it does at its end must then not wait for the other PEs: they may be waiting for it.
    """
    return _state["failed"]


def note_failure() -> None:
    """Take note that this process has failed, and is about to end."""
    _state["failed"] = True


def note_exceptions() -> None:
    """Count an exception that ends this process as its failure; for any number of calls."""
    if _state["notes"]:
        return
    _state["notes"], previous = True, sys.excepthook

    def on_exception(
        kind: type[BaseException], error: BaseException, tb: TracebackType | None
    ) -> None:
        note_failure()
        previous(kind, error, tb)

    sys.excepthook = on_exception


def tell_the_others(job: Job) -> None:
    """See to it that the job hears of this process's end; for any number of calls."""
    board = job.board
    if board["launcher"] or job.n_pes == 1 or job.board_fd in _told:
        return
    _told.add(job.board_fd)
    previous, process = sys.excepthook, os.getpid()

    def on_exception(
        kind: type[BaseException], error: BaseException, tb: TracebackType | None
    ) -> None:
        board.claim(FAILED, job.my_pe, reason_of(error))
        previous(kind, error, tb)

    def at_exit() -> None:
        if os.getpid() == process:  # not one that was forked from it
            board.mark_ended(job.my_pe, 0)

    sys.excepthook = on_exception
    atexit.register(at_exit)


def reason_of(error: BaseException) -> str:
    """An exception in a line, with the line of the program that it comes from."""
    text = traceback.format_exception_only(error)[-1].strip()
    frames = traceback.extract_tb(error.__traceback__)
    return f"{text} ({frames[-1].filename}:{frames[-1].lineno})" if frames else text
