"""Waiting for what does not call back."""

from __future__ import annotations

import time
from collections.abc import Callable

from gpushmem.bootstrap.channel import Deadline

__all__ = ["poll"]

SHORTEST, LONGEST = 0.001, 0.05


def poll(deadline: Deadline, condition: Callable[[], bool]) -> bool:
    """Call `condition` again and again until it holds; False if it does not in time."""
    pause = SHORTEST
    while not condition():
        if not deadline.left:
            return False
        time.sleep(min(pause, deadline.left))
        pause = min(1.5 * pause, LONGEST)
    return True
