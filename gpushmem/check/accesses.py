"""Accesses to memory, of operations and of plain loads and stores."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gpushmem.check.calls import Call
from gpushmem.check.clock import Bit, Clock
from gpushmem.ops.row import Op

__all__ = ["LOCAL", "PLAIN", "SHARED_MEMORY", "Access"]

# A plain load or store, or a run of them. `space`: the PE whose heap it is in, or LOCAL, for memory
# that is not symmetric, or SHARED_MEMORY, of the launch. `fetches`: whether what is there matters.
PLAIN = np.dtype(
    [
        (name, "i8")
        for name in (
            "launch", "thread", "clock", "site", "space", "start", "stride", "count", "step",
            "size", "how", "low", "end", "value", "valued", "stamp", "fetches",
        )
    ]
)  # fmt: skip
LOCAL, SHARED_MEMORY = -1, -2


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

    @property
    def away(self) -> bool:
        """Whether it is a plain store to another PE's memory."""
        plain_store = self.op is None and self.writes
        return plain_store and self.space[0] == "heap" and self.space[1] != self.pe

    @property
    def end(self) -> int:
        """Just after the last byte."""
        return self.start + max(0, self.stride * (self.times - 1)) + self.size

    @property
    def low(self) -> int:
        """The first byte."""
        return self.start + min(0, self.stride * (self.times - 1))
