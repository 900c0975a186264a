"""A lock that is a word in memory, 0 while nobody has it. For C functions."""

from __future__ import annotations

from gpushmem.native.internal import internal
from gpushmem.native.memory import compare_swap_word, sched_yield, store_release

__all__ = ["lock", "try_lock", "unlock"]


@internal
def lock(address: int) -> None:
    """Take the lock; who has it gives it back soon."""
    while compare_swap_word(address, 0, 1) != 0:
        sched_yield()


@internal
def try_lock(address: int) -> bool:
    """Take the lock if nobody has it; returns whether it is taken now."""
    return compare_swap_word(address, 0, 1) == 0


@internal
def unlock(address: int) -> None:
    """Give it back."""
    store_release(address, 0)
