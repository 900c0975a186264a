"""Accesses to memory, of operations and of plain loads and stores."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, TypeVar

import numpy as np

from gpushmem.check.calls import Call
from gpushmem.check.conditions import CHANGES
from gpushmem.check.vector_clock import Bit, Clock
from gpushmem.ops.row import Op

__all__ = ["LOCAL", "PLAIN", "SHARED_MEMORY", "Access", "as_one", "line_in", "other_pe"]

# A plain load or store, or a run of them. `space`: the PE whose heap it is in, or LOCAL, for memory
# that is not symmetric, or SHARED_MEMORY, of the launch. `fetches`: whether what is there matters;
# `wide`: it is atomic for all PEs.
PLAIN = np.dtype(
    [
        (name, "i8")
        for name in (
            "launch", "thread", "clock", "site", "space", "start", "stride", "count", "step",
            "size", "how", "low", "end", "value", "valued", "stamp", "fetches", "wide",
        )
    ]
)  # fmt: skip
LOCAL, SHARED_MEMORY = -1, -2


Found = TypeVar("Found", bound=Any)


def as_one(found: Iterable[Found], key: Any, place: Any) -> list[Found]:
    """Those with one key as one: the first by its place, which are seen as often as all."""
    made: dict[Any, Found] = {}
    for one in found:
        name = key(one)
        other = made.get(name)
        first = one if other is None else min(other, one, key=place)
        made[name] = first._replace(seen=one.seen + (0 if other is None else other.seen))
    return [made[name] for name in sorted(made)]


def line_in(site: str) -> str:
    """The file and line of a site, without the function."""
    return site.partition(" in ")[0]


def other_pe(space: Any, pe: int) -> int | None:
    """The PE that a memory belongs to, unless it is this one, or the memory is not symmetric."""
    kind, owner = space[:2]
    return int(owner) if kind == "heap" and owner != pe else None


class Access(NamedTuple):
    """One access to memory, or a run of equal ones by consecutive threads."""

    space: Any  # the memory: a PE's heap, ...
    start: int  # in it
    size: int  # bytes of one element
    stride: int  # bytes from one to the next
    times: int
    writes: bool
    atomic: bool  # does not conflict with others that are
    pe: int  # whose
    launch: int  # 0: the host's
    thread: int
    step: int  # threads from one element to the next
    when: int  # the thread's clock
    site: str
    op: Op | None  # None: a plain load or store
    call: Call | None
    over: Bit | None  # who knows this, knows that the operation's access is over
    clock: Clock | None  # what is over when it happens; of a plain access see `History.clock_of`
    stamp: int  # none that comes after it has a smaller one
    wide: bool = True  # if it is atomic, it is so for all PEs

    @property
    def change(self) -> str:
        """Of an atomic access, how it changes a word, if what it was is not returned."""
        if not self.atomic or not self.writes or self.call is None or self.call.update is None:
            return ""
        how = self.call.update.how
        return "" if how == "set" and self.call.op.returns.dtype is not None else how

    def conflicts(self, other: Access) -> bool:
        """Whether it matters which of two accesses to the same bytes comes first.

        Atomic ones do not conflict, but where one sets a word and the other changes it: if that
        comes first it is lost; where one is atomic for too few threads; and where they are of
        different widths, or of different parts of a word.
        """
        if not self.writes and not other.writes:
            return False
        if self.atomic and other.atomic:
            both = self.change, other.change
            lost = "set" in both and any(how in CHANGES for how in both)
            return lost or self.too_narrow_for(other) or self.is_other_word(other)
        return True

    @property
    def kind(self) -> Any:
        """What says of two accesses whether they conflict where they overlap, with `conflicts`.

        Accesses of one kind do, or do not, with all of another kind.
        """
        if not self.atomic:
            return self.writes
        narrow = None if self.wide else self.pe
        return self.writes, self.change, narrow, self.pe, self.size, self.start % self.size

    def is_of_call_of(self, other: Access) -> bool:
        """Whether one call of an operation makes both."""
        one, two = self.call, other.call
        return one is not None and two is not None and one.each is two.each

    def is_other_word(self, other: Access) -> bool:
        """Whether two atomic accesses that overlap are not of the same word."""
        return self.size != other.size or (self.start - other.start) % self.size != 0

    def too_narrow_for(self, other: Access) -> bool:
        """Whether one of two atomic accesses is so on its own GPU only."""
        narrow = any(access.atomic and not access.wide for access in (self, other))
        return narrow and self.pe != other.pe

    @property
    def away(self) -> int | None:
        """Of a plain store to another PE's memory, that PE."""
        if self.op is not None or not self.writes:
            return None
        return other_pe(self.space, self.pe)

    @property
    def end(self) -> int:
        """Just after the last byte."""
        return self.start + max(0, self.stride * (self.times - 1)) + self.size

    @property
    def low(self) -> int:
        """The first byte."""
        return self.start + min(0, self.stride * (self.times - 1))
