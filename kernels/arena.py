"""Symmetric memory that a team allocates from by itself: plans for some PEs, made by them alone.

Allocation on the symmetric heap is collective over all PEs: where teams do different things, those
who are in none would have to come to it. An *arena* is allocated once, by all; what is in use of it
each PE knows for itself. The members of a team agree on the lowest place that is free on all:

    k = 0
    repeat
        each proposes the lowest place from k on that is free on it; k = the largest of these
    until k is what it was before

A proposal is never below k, so if their largest is k all have proposed k. k only grows, so it ends.
Others may use the same place for a team of theirs that has no member of this one: no PE is in both.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import pairwise
from typing import Any

import gpushmem as shmem

__all__ = ["USED", "Arena"]

ALIGNMENT = 256  # bytes, as of the heap
FULL = 1 << 62  # no place, as a proposal
USED: ContextVar[Arena | None] = ContextVar("arena", default=None)  # by plans that are being made


class Arena:
    """`nbytes` of symmetric memory for teams' plans. Making and freeing it is collective over all.

    Between these, `allocate` and `release` are collective over a team: its members make the same
    calls in the same order, while other PEs do what they like. All plans made in a block `with
    arena.plans():` have their memory here, so making and freeing them is collective over their team
    alone.
    """

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self._memory = shmem.empty(nbytes, "uint8")
        self._proposal, self._largest = shmem.empty(1, "int64"), shmem.empty(1, "int64")
        self._taken: dict[int, int] = {}  # first byte -> the byte after the last one

    def allocate(self, team: Any, nbytes: int) -> Any:
        """Symmetric bytes, at the same place on all members and zeroed on all when this returns.

        Collective over the team; its members ask for the same number. Raises `HeapExhausted` on all
        members if there is no place that is free on all.
        """
        size = max(1, -(-nbytes // ALIGNMENT)) * ALIGNMENT
        place, before = 0, -1
        while place != before:
            before, place = place, self._agree(team, self._lowest(place, size))
        if place == FULL:
            raise shmem.HeapExhausted(
                f"an arena of {self.nbytes:,} bytes has no {size:,} that are free on all PEs of "
                f"the team; this PE has {self.nbytes - sum(self._sizes()):,} free: make a larger "
                "one, or free plans"
            )
        self._taken[place] = place + size
        part = self._memory[place : place + size]
        part[...] = 0
        shmem.barrier(team)
        return part[:nbytes]

    def release(self, team: Any, part: Any) -> None:
        """Give back what `allocate` returned, once no member's kernel uses it; collective."""
        shmem.barrier(team)
        del self._taken[part.offset - self._memory.offset]

    @contextmanager
    def plans(self) -> Iterator[None]:
        """Let plans that this thread makes in the block have their memory here."""
        token = USED.set(self)
        try:
            yield
        finally:
            USED.reset(token)

    def free(self) -> None:
        """Give the memory back; collective over all PEs."""
        for array in (self._memory, self._proposal, self._largest):
            shmem.free(array)

    def _sizes(self) -> Iterator[int]:
        return (stop - start for start, stop in self._taken.items())

    def _lowest(self, start: int, size: int) -> int:
        """The lowest place from `start` on that has so many bytes free."""
        taken = sorted(self._taken.items())
        for (_, stop), (following, _) in pairwise([(0, 0), *taken, (self.nbytes, 0)]):
            place = max(start, stop)
            if place + size <= following:
                return place
        return FULL

    def _agree(self, team: Any, place: int) -> int:
        self._proposal[0] = place
        shmem.reduce(team, self._largest, self._proposal, "max")
        return int(self._largest[0])
