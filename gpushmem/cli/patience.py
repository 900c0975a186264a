"""Commands that ask other processes, which may be made to keep who asks."""

from __future__ import annotations

import os
import signal

__all__ = ["give_up_after"]


def give_up_after(seconds: float) -> None:
    """End this process, with a word, if it still runs then."""

    def give_up(*_: object) -> None:
        os.write(
            2, b"Error: no answer within %g s: a job's memory is not as it should be\n" % seconds
        )
        os._exit(1)

    signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, seconds)
