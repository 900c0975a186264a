"""mbarriers as the logs are gone through: what who waits for a phase knows of it.

A wait orders what the phases that it must have seen complete, in every run, and not those that it
happened to see. Who knows that so many are complete waits for none if the parity of the last one is
that of the wait, and otherwise for the next.
"""

from __future__ import annotations

from typing import Any

from gpushmem.check.calls import Call
from gpushmem.check.vector_clock import DONE, NONE, PHASES, Clock

__all__ = ["Mbarriers"]


class Mbarrier:
    """One of them; see `mbarrier_init`."""

    def __init__(self, key: Any, count: int) -> None:
        self._key, self._count = key, count
        self._missing, self._nbytes = count, 0  # of the phase that goes on
        self._copies: list[Call] = []  # ... that it counts
        self._known = Clock()  # to who waits for that phase: also of those before
        self._complete: list[Clock] = []  # what is known of each phase

    def arrive(self, clock: Clock, nbytes: int) -> None:
        """Somebody who knows this arrives, and expects bytes."""
        self._known.join(clock)
        self._missing -= 1
        self._nbytes += nbytes
        self._look()

    def copy(self, call: Call) -> None:
        """A copy is begun."""
        self._copies.append(call)
        self._nbytes -= next(e.size for e in call.effects if e.effect.array == "src")
        self._look()

    def _look(self) -> None:
        if self._missing == 0 == self._nbytes:
            for copy in self._copies:
                copy.mark(self._known, DONE)
            self._known.put(self._key, len(self._complete))
            self._complete.append(self._known.copy())
            self._missing, self._copies = self._count, []

    def wait(self, clock: Clock, parity: int) -> None:
        """Let who has waited know what it must have seen."""
        phase = clock.masks.get(self._key, NONE).base
        if phase % 2 == parity and phase < len(self._complete):
            clock.join(self._complete[phase])


class Mbarriers(dict[Any, Mbarrier]):
    """All, by where they are."""

    def returned(self, where: Any, call: Call, clock: Clock) -> None:
        """A call about one of them has returned, of somebody who knows this."""
        base, number = call.op.base, call.compare
        if base == "mbarrier_init":
            self[where] = Mbarrier((PHASES, call.by, call.bit), number)
        elif where not in self:
            return  # the call is in error: see `uninitialized`
        elif base == "mbarrier_wait":
            self[where].wait(clock, number)
        elif base == "copy_bulk":
            self[where].copy(call)
        else:
            self[where].arrive(clock, number)
