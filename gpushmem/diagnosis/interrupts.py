"""Signals of a PE that no launcher of ours looks after: SIGUSR1 asks who waits, so does Ctrl-C."""

from __future__ import annotations

import faulthandler
import signal
import sys
from contextlib import suppress
from typing import Any

from gpushmem.diagnosis.pe_state import Accountant
from gpushmem.diagnosis.report import report
from gpushmem.job.board import Board
from gpushmem.waiting_threads import hosts

__all__ = ["Interrupts"]


class Interrupts:
    """The handlers, from `init` to `finalize`; those the user has set stay.

    In a job of `gpushmem run` the launcher reports on all PEs, and SIGUSR1 to a PE prints its
    Python stacks, also when Python is busy.
    """

    def __init__(self, accountant: Accountant, board: Board) -> None:
        self._accountant = accountant
        self._previous: dict[int, Any] = {}
        if board["launcher"]:
            return
        try:
            if signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL:
                self._previous[signal.SIGUSR1] = signal.signal(signal.SIGUSR1, self._on_usr1)
            if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                self._previous[signal.SIGINT] = signal.signal(signal.SIGINT, self._on_interrupt)
        except ValueError:
            pass  # init() outside the main thread: signals are somebody else's

    def restore(self) -> None:
        """Put the handlers back."""
        while self._previous:
            number, handler = self._previous.popitem()
            with suppress(ValueError):  # finalize() outside the main thread
                signal.signal(number, handler)

    def _report(self) -> None:
        account = self._accountant.account()
        sys.stderr.write(report({account["pe"]: account}, {}))  # in one piece
        sys.stderr.flush()

    def _on_usr1(self, number: int, frame: Any) -> None:
        self._report()
        faulthandler.dump_traceback(all_threads=True)

    def _on_interrupt(self, number: int, frame: Any) -> None:
        if hosts():
            self._report()
        signal.default_int_handler(number, frame)
