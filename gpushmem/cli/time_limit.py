"""A time limit for commands that query other processes, which might block them."""

from __future__ import annotations

import os
import signal

__all__ = ["give_up_after"]


def give_up_after(seconds: float) -> None:
    """End this process, with a message, if it is still running after so many seconds."""

    def give_up(*_: object) -> None:
        os.write(2, b"Error: no answer within %g s: the memory of a job is not valid\n" % seconds)
        os._exit(1)

    signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, seconds)
