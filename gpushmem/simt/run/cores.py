"""The cores that kernels without fibers are spread over.

As many as GPUSHMEM_THREADS says, by default all that this process may use; the launcher of a job
divides them among its PEs. Work is dealt out in equal parts, one per core.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache

from gpushmem import settings
from gpushmem.waiting_threads import help_others

__all__ = ["VARIABLE", "available", "run", "usable_cores"]

VARIABLE = "GPUSHMEM_THREADS"


def available() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0))


def usable_cores() -> int:
    """Cores a kernel may use: GPUSHMEM_THREADS, or all there are."""
    return settings.get(VARIABLE) or available()


def run(parts: list[Callable[[], None]]) -> None:
    """Run all `parts` at once, the first one on this thread; returns when all have ended."""
    others = [_pool(os.getpid()).submit(part) for part in parts[1:]]
    try:
        parts[0]()
    finally:
        for other in others:
            other.result()


@cache
def _pool(pid: int) -> ThreadPoolExecutor:
    """The threads of this process; those of a parent do not survive a fork."""
    return ThreadPoolExecutor(4 * available(), "gpushmem", initializer=help_others)
