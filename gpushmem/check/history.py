"""What the logs say: the accesses of all PEs, and what was known, by whom, when they were made."""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from gpushmem.check.accesses import Access, line_in
from gpushmem.check.launches import OF_BLOCK
from gpushmem.check.log import Trace
from gpushmem.check.pe_memory import Pe
from gpushmem.check.synchronization import Outcome, Waits
from gpushmem.check.vector_clock import ENDED, Bit, Clock
from gpushmem.simt.observe import ATOMIC, LOAD

__all__ = ["Atomic", "Divergence", "Earlier", "History", "Observer", "Turn"]


BEFORE = -2  # a time that is over for all


class Divergence(NamedTuple):
    """A meeting of a block at two barriers: threads, each with the line at which it waited."""

    pe: int
    launch: int
    first: tuple[int, str]
    second: tuple[int, str]


class Turn(NamedTuple):
    """An operation that has had its turn (`turns`)."""

    number: int
    by: Any  # the call, or an `Atomic`
    site: str
    who: tuple[int, int, int]  # PE, launch, thread
    over: Bit
    clock: Clock  # with which it began
    failed: bool  # it has changed nothing, and a loop may try it again


class Atomic(NamedTuple):
    """An atomic operation of numba.cuda."""

    change: str
    value: int | None
    where: Any
    used: bool  # whether the program looks at what it returns
    fails: Any  # (what it was, `given`) -> whether it changes nothing
    given: int


class Observer:
    """Who sees the accesses of operations and hosts, each before what comes after it: nobody."""

    def begin(self) -> None:
        """They are seen from the first one on, again."""

    def see(self, history: History, access: Access) -> None:
        """One more of them."""


class Earlier(NamedTuple):
    """What the parts of a job before this one have left (`parts`)."""

    words: Outcome
    written: dict[tuple[int, int], Any]  # of arrays, by PE and place in `Pe.arrays`: which cells
    teams: dict[int, dict[int, Any]]  # of each PE
    exposed: list[Access]


class History:
    """What all PEs did, in a job or in a part of it; `happens_before` fills it.

    `exact`: reads order what they saw in this run (`Waits.exact`).
    """

    def __init__(
        self, traces: Iterable[Trace], exact: bool = False, earlier: Earlier | None = None
    ) -> None:
        self.before = earlier or Earlier(Outcome({}, {}), {}, {}, [])
        self.pes = {trace.pe: Pe(trace, self.before.teams.get(trace.pe, {})) for trace in traces}
        self.files: dict[str, str] = {}
        for pe in self.pes.values():
            for fact in pe.trace.facts:
                self.files |= fact.get("files", {})
                if fact.get("path"):
                    self.files[Path(fact["path"]).name] = fact["path"]
        self.waits = Waits(exact, self.before.words)
        self.arrays: dict[tuple[int, int], Any] = {}  # `uninitialized` has seen; see `Earlier`
        self.passes = 0  # over the logs, if they were too few to learn all that waits order
        self._looks: dict[Any, bool | None] = {}  # of calls, by line and operation
        self.forget()

    def forget(self) -> None:
        """Begin again to collect what all did."""
        self.accesses: list[Access] = []  # of operations and hosts
        self.exposed = list(self.before.exposed)  # by hosts: from then on unseen
        # Meetings of blocks at two barriers: PE, launch, and of each thread its number and line.
        self.divergences: list[Divergence] = []
        self.turns: list[Turn] = []
        self.waiting: list[Turn] = []  # waits that have not ended

    @cached_property
    def since(self) -> int:
        """The stamp of the first event."""
        stamps = [pe.trace.records["stamp"] for pe in self.pes.values()]
        return min((int(some.min()) for some in stamps if len(some)), default=0)

    def earlier(self) -> Earlier:
        """What this part leaves to the next."""
        exposed = {(a.space, a.start, a.size): a for a in reversed(self.exposed)}
        return Earlier(
            self.waits.outcome(self.pes.values()),
            self.before.written | {key: one.written for key, one in self.arrays.items()},
            {pe.pe: pe.teams for pe in self.pes.values()},
            [a._replace(when=BEFORE, clock=Clock()) for a in exposed.values()],
        )  # fmt: skip

    def source(self, site: str) -> str:
        """The text of a line."""
        file, _, number = line_in(site).rpartition(":")
        path = self.files.get(file)
        return linecache.getline(path, int(number)).strip() if path and number.isdigit() else ""

    def looks_at_result(self, call: Any) -> bool | None:
        """Whether a program looks at what a call returns, or the call is a statement.

        None: the line does not show it, as the operation has another name there.
        """
        key = call.site, call.op.base
        if key not in self._looks:
            line, name = self.source(call.site), rf"(\w+\.)*{call.op.base}\w*\("
            statement, shown = re.match(name, line), re.search(name, line)
            self._looks[key] = False if statement else True if shown else None
        return self._looks[key]

    def has_ended(self, turn: Turn) -> bool:
        """Whether the launch of a thread that has had a turn has ended."""
        pe, launch, _ = turn.who
        return not launch or self.pes[pe].launches[launch].ended is not None

    @property
    def without_pes(self) -> bool:
        """Whether nobody has called `init`: reports then speak of no PEs."""
        return not any(pe.heaps for pe in self.pes.values())

    def access(self, pe: int, row: Any) -> Access:
        """One of them."""
        start, stride, count, step, size, how = (
            int(row[k]) for k in ("start", "stride", "count", "step", "size", "how")
        )
        launch, thread, when = (int(row[k]) for k in ("launch", "thread", "clock"))
        space = self.pes[pe].space(int(row["space"]), launch)
        return Access(
            space, start, size, stride, count, how != LOAD, how == ATOMIC,
            pe, launch, thread, step, when, self.pes[pe].sites.get(int(row["site"]), "?"), None,
            None, None, None, 0, bool(row["wide"]),
        )  # fmt: skip

    def clock_of(self, access: Access, thread: int) -> Clock:
        """What a thread that made an access knew then."""
        if access.clock is not None:
            return access.clock
        return self.pes[access.pe].launches[access.launch].at(thread, access.when)[0]

    def least_clock_of(self, access: Access) -> Clock:
        """What all threads that made an access knew then."""
        if access.clock is not None or access.step == 0 or access.times == 1:
            return self.clock_of(access, access.thread)
        launch = self.pes[access.pe].launches[access.launch]
        last = access.thread + access.times - 1
        if access.thread // launch.threads != last // launch.threads:
            return launch.begun
        return launch.at(access.thread, access.when, all_of_block=True)[0]

    def over(self, access: Access, thread: int, clock: Clock, seen: bool = True) -> bool:
        """Whether a clock knows that a thread's part of an access is over; `seen`: by a read."""
        if access.over is not None:
            return access.over.known(clock)
        if access.launch == 0:
            return clock.times.get(("host", access.pe), -1) > access.when
        launch = self.pes[access.pe].launches[access.launch]
        seen = seen and access.writes
        if launch.over(thread, access.when, clock, access.away, seen):
            return True
        return access.atomic and self._was_seen(access, thread, clock)

    def _was_seen(self, access: Access, thread: int, clock: Clock) -> bool:
        """Whether a clock knows of an atomic operation that has seen what a plain one did."""
        k = (thread - access.thread) // access.step if access.step else 0
        where = access.space, access.start + k * access.stride
        who = access.pe, access.launch, thread
        for by in self.waits.seen_by(where, who, access.when):
            launch = self.pes[by.pe].launches[by.launch]
            if launch.known_time(by.thread, clock, seen=True) >= by.when:
                return True
            if launch.all_over(by.thread // launch.threads, by.when, clock):
                return True
        return False

    def all_over(self, access: Access, clock: Clock) -> bool:
        """Whether a clock knows that all of an access is over."""
        if access.over is not None or access.step == 0 or access.times == 1:
            return self.over(access, access.thread, clock)
        launch = self.pes[access.pe].launches[access.launch]
        last = access.thread + access.times - 1
        block = access.thread // launch.threads
        if block != last // launch.threads:
            return clock.has(ENDED, access.pe, 0, access.launch)
        return launch.all_over(block, access.when, clock, access.away, access.writes)

    def scope(self, first: Access, one: int, second: Access, two: int) -> int:
        """The scope of a fence for two threads that make accesses."""
        by, other = (first.pe, first.launch, one), (second.pe, second.launch, two)
        return self.pes[first.pe].scope(by, other)

    def stamp_of(self, access: Access, thread: int) -> int:
        """A stamp when a thread knew what it knew when it made an access."""
        if access.clock is not None:
            return access.stamp
        return self.pes[access.pe].launches[access.launch].at(thread, access.when)[1]

    def excluded(self, first: Access, one: int, second: Access, two: int) -> bool:
        """Whether a lock keeps two accesses apart, whichever comes first.

        Each is made after somebody took the lock, and is over, and fenced, when it is given back.
        """
        scope = self.scope(first, one, second, two)
        near = (first.pe, first.launch, one) if scope == OF_BLOCK else None
        block = self.pes[first.pe].block_of(near) if near else None
        both = (first, one), (second, two)
        for lock in self.waits.locks:
            held = [
                {
                    section.taken
                    for section in lock.around(self.stamp_of(access, thread))
                    if self.waits.held(section.taken, self.clock_of(access, thread), scope)
                    and (
                        section.back is None or self.over(access, thread, section.back.told(block))
                    )
                }
                for access, thread in both
            ]
            if held[0] and held[1] and len(held[0] | held[1]) > 1:
                return True
        return False
