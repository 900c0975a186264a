"""The trace of what the host of a PE does, on every backend that traces.

A backend says how an event is appended and completed, what its clock is, and where its arrays are.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from gpushmem.backends.host.event_readers import During, Reader
from gpushmem.backends.host.host_kernels import nbytes_of
from gpushmem.ops import TEAM_WORLD, Op
from gpushmem.source_lines import Place, user_place
from gpushmem.trace.event_facts import Facts
from gpushmem.trace.ring import CALL, COMPILE, KIND_OF, MEET, NO_PE, RANGE

__all__ = ["HostTracer", "TeamsIn"]

# The teams that an operation has returned, if any: their numbers, and members.
TeamsIn = Callable[[Any], Iterable[tuple[int, Any]]]


class HostTracer(Reader):
    """Records the host's part of a PE's events, and what numbers in all of them mean."""

    long: int  # a launch that takes as long to prepare, in the clock's units, is an event
    facts: Facts
    counts = False  # whether events are counted only
    teams_in: TeamsIn

    def __init__(self) -> None:
        self._threads: dict[int, int] = {}
        self._numbering = threading.Lock()

    @abstractmethod
    def now(self) -> int:
        """The time, as events have it."""

    @abstractmethod
    def append(
        self, kind: int, pe: int, at: int, value: int, nbytes: int, site: int, thread: int,
        began: int, ended: int,
    ) -> int:  # fmt: skip
        """Append an event, which is not over if `ended` is 0; returns its number."""

    @abstractmethod
    def end(self, number: int) -> None:
        """What this event is of is over."""

    @abstractmethod
    def where(self, array: Any) -> int | None:
        """Where on the heap a symmetric array of an operation is; None if it is a number."""

    def thread(self) -> int:
        """The number of the calling thread."""
        ident = threading.get_ident()
        if ident not in self._threads:
            with self._numbering:
                self._threads[ident] = len(self._threads)
        return self._threads[ident]

    def meeting(self, what: str) -> During:
        return self._during(MEET, self.facts.name(what))

    def calling(self, what: str) -> During:
        return self._during(CALL, self.facts.name(what))

    def ranging(self, name: str) -> During:
        return self._during(RANGE, self.facts.name(name))

    @contextmanager
    def preparing(self, kernel: str) -> Iterator[None]:
        began = self.now()
        yield
        ended = self.now()
        if ended - began > self.long:
            self._note(COMPILE, value=self.facts.name(kernel), began=began, ended=ended)

    @contextmanager
    def _during(self, kind: int, value: int) -> Iterator[None]:
        number = self._note(kind, value=value)
        try:
            yield
        finally:
            self.end(number)

    def call(self, op: Op, arguments: dict[str, Any], run: Callable[[], Any]) -> Any:
        if op.facts.meets:
            with self._during(KIND_OF[op.name], int(arguments.get("team", TEAM_WORLD))):
                result = run()
        elif op.facts.waits_for:
            with self.calling(op.name):
                result = run()
        else:
            place, began = user_place(), self.now()
            result = run()
            self._performed(op, arguments, place, began)
        for team, pes in self.teams_in(result):
            self.facts.team(team, pes)
        return result

    def queued(
        self, op: Op, arguments: dict[str, Any], run: Callable[[], Any], stream: int
    ) -> Callable[[], Any]:
        place = user_place()

        def performed() -> Any:
            began = self.now()
            result = run()
            self._performed(op, arguments, place, began)
            return result

        return performed

    def _performed(self, op: Op, arguments: dict[str, Any], place: Place, began: int) -> None:
        """One event for each effect on memory that PEs share; one in all if events are counted."""
        if not op.is_event:
            return
        pe, value = int(arguments.get("pe", NO_PE)), arguments.get("value", 0)
        value, ended = int(value) if isinstance(value, int | np.integer) else 0, self.now()
        events = [
            (at, nbytes_of(effect, arguments))
            for effect in op.facts.effects
            if op.arrays[effect.array].symmetric
            and (at := self.where(arguments[effect.array])) is not None
        ]
        if self.counts or not events:
            events = [(-1, sum(nbytes for _, nbytes in events))]
        for at, nbytes in events:
            self._note(KIND_OF[op.name], pe, at, value, nbytes, place, began, ended)

    def _note(
        self, kind: int, pe: int = NO_PE, at: int = -1, value: int = 0, nbytes: int = 0,
        place: Place | None = None, began: int = 0, ended: int = 0,
    ) -> int:  # fmt: skip
        """Append an event of this thread; one that begins now if nothing else is said."""
        site = self.facts.site(place or user_place())
        value = (value + (1 << 63)) % (1 << 64) - (1 << 63)
        began = began or self.now()
        return self.append(kind, pe, at, value, nbytes, site, self.thread(), began, ended)

    def arrays(self) -> None:
        self.facts.arrays(self.allocated())

    def released(self, offset: int) -> None:
        self.facts.released(offset)
