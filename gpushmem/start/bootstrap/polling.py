"""Polling with back-off."""

from __future__ import annotations

import time
from collections.abc import Callable

from gpushmem.start.bootstrap.channel import Deadline

__all__ = ["poll"]

SHORTEST, LONGEST = 0.001, 0.05


def poll(deadline: Deadline, condition: Callable[[], bool]) -> bool:
    """Call `condition` repeatedly until it holds; False if it does not hold in time."""
    pause = SHORTEST
    while not condition():
        if not deadline.left:
            return False
        time.sleep(min(pause, deadline.left))
        pause = min(1.5 * pause, LONGEST)
    return True
