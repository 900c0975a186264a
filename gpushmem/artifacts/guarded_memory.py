"""Memory with gaps around it, whose addresses are never used again: for who watches accesses."""

from __future__ import annotations

import mmap

import numpy as np

__all__ = ["GUARD", "guarded", "spend"]

GUARD = 1 << 20  # bytes before and after it

_spent: list[mmap.mmap] = []


def guarded(nbytes: int) -> tuple[mmap.mmap, int]:
    """Memory of so many bytes, all 0, with GUARD bytes before and after it; and its address."""
    memory = mmap.mmap(-1, nbytes + 2 * GUARD, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return memory, np.frombuffer(memory, np.uint8).ctypes.data + GUARD


def spend(memory: mmap.mmap) -> None:
    """Free memory whose addresses a witness would take for the same array, if used again."""
    memory.madvise(mmap.MADV_DONTNEED)
    _spent.append(memory)
