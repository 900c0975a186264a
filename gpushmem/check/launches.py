"""What the threads of launches know, as the logs are gone through."""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from gpushmem.check.log import PHASE
from gpushmem.check.vector_clock import ENDED, OUT, SENT, Bit, Clock

__all__ = ["OF_BLOCK", "OF_GPU", "OF_SYSTEM", "Block", "Launch", "Times"]

OF_BLOCK, OF_GPU, OF_SYSTEM = range(3)  # scopes of a fence
GRID = "grid", 0  # ends the key of a clock's time for the meetings of the grid


class Block:
    """The threads of a block: what all know, and what some know besides."""

    def __init__(self, clock: Clock, stamp: int) -> None:
        self.phases, self.clocks, self.stamps = [0], [clock], [stamp]
        self.barriers: list[int] = []  # those of the meetings that all its threads waited in
        self.own: dict[int, Clock] = {}  # threads with events since the last barrier

    def met(self, phase: int, clock: Clock, stamp: int) -> None:
        """The block has met, for the `phase`-th time."""
        self.phases.append(phase)
        self.clocks.append(clock)
        self.stamps.append(stamp)


class Meeting:
    """A meeting of a warp, or of the grid: what those know who came, and when each did."""

    def __init__(self) -> None:
        self.clock, self.left = Clock(), False
        self.came: dict[int, int] = {}


class Unfenced:
    """What a thread has seen by relaxed reads, and not fenced since then."""

    def __init__(self, times: dict[Any, int], when: int) -> None:
        self.known = Clock(times)  # before, and since by fences of a smaller scope
        self.first = when
        self.last = "?"  # line of the last of them
        self.seen: dict[int, Clock] = {}  # by the scope of the fence that is missing

    def fence(self, scope: int) -> bool:
        """Fence what is seen of a scope's threads; returns whether that is all."""
        for smaller in range(scope + 1):
            self.known.join(self.seen.pop(smaller, Clock()))
        return not self.seen


class Taken:
    """A lock that a thread has taken by an atomic operation of numba.cuda."""

    def __init__(self, launch: Launch, thread: int, when: int, site: str) -> None:
        self._launch, self._thread, self.when, self.site = launch, thread, when, site
        self.fenced: dict[int, int] = {}  # by scope: when

    def held(self, clock: Clock, scope: int) -> bool:
        """Whether what has a clock comes after it, and after a fence of a scope or a barrier."""
        launch, thread = self._launch, self._thread
        fenced = self.fenced.get(scope)
        if fenced is not None and launch.known_time(thread, clock, seen=True) >= fenced:
            return True
        return launch.all_over(thread // launch.threads, self.when, clock)


class Times:
    """When the threads of a launch load and store: by their clocks."""

    def __init__(self, rows: Any) -> None:
        alone = (rows["step"] == 0) | (rows["count"] == 1)
        self._of: dict[int, list[int]] = defaultdict(list)
        for thread, clock in rows[alone][["thread", "clock"]].tolist():
            self._of[thread].append(clock)
        for clocks in self._of.values():
            clocks.sort()
        self._of_several = sorted(rows["clock"][~alone].tolist())

    def any_between(self, thread: int, start: int, end: int) -> bool:
        """Whether a thread accesses anything from one clock on, before another one."""
        own, all_of_them = self._of.get(thread), self._of_several
        if own and bisect.bisect_left(own, start) < bisect.bisect_left(own, end):
            return True
        return bool(all_of_them) and (
            bisect.bisect_left(all_of_them, start) < bisect.bisect_left(all_of_them, end)
        )


class Launch:
    """A launch."""

    def __init__(
        self, pe: int, number: int, threads: int, stream: int, submitted: Clock, accesses: Times
    ) -> None:
        self.pe, self.number, self.threads, self.stream = pe, number, threads, stream
        self.accesses = accesses
        self.submitted = submitted
        self.begun = Clock()
        self.ended: Clock | None = None
        self.stamp = 0
        self.site = "?"  # of the host's line
        self.live = 0  # which of the PE's lists says what arrays there were
        self.resident = False  # whether all blocks are sure to run at the same time
        self.blocks: dict[int, Block] = {}
        self.past: dict[int, tuple[list[int], list[Clock], list[int]]] = {}  # thread -> its events
        self.groups: dict[Any, Meeting] = defaultdict(Meeting)  # of warps, and of the grid
        self.came: dict[Any, int] = defaultdict(int)  # how often, by group and thread
        self.grids: list[dict[int, int]] = []  # when each thread came to each meeting of the grid
        self.updates = 0  # atomic operations of numba.cuda so far
        self.first_updates: dict[int, Bit] = {}  # ... by thread
        self.looked: dict[int, tuple[Any, int]] = {}  # the last, if it only reads, and its clock
        self.released: dict[tuple[int, int], Clock] = {}  # what threads have fenced; for whom
        self._unfenced: dict[int, Unfenced] = {}  # by thread
        self._fenced: dict[int, list[tuple[int, Unfenced]]] = defaultdict(list)  # ... when
        self._taken: dict[int, list[Taken]] = defaultdict(list)  # locks; by thread
        self._open: dict[int, set[int]] = defaultdict(set)  # threads with any of it; by block

    def block_of(self, thread: int) -> Block:
        """The block of a thread."""
        return self.block(thread // self.threads)

    def block(self, number: int) -> Block:
        """A block, by its number."""
        if number not in self.blocks:
            self.blocks[number] = Block(self.begun, self.stamp)
        return self.blocks[number]

    def clock(self, thread: int) -> Clock:
        """What a thread knows now, to be changed."""
        block = self.block_of(thread)
        if thread not in block.own:
            block.own[thread] = block.clocks[-1].copy()
        return block.own[thread]

    def has_begun(self, block: int, clock: Clock) -> bool:
        """Whether a clock knows anything of a block."""
        for thread in range(block * self.threads, (block + 1) * self.threads):
            step = self.first_updates.get(thread)
            if step is not None and step.known(clock):
                return True
        for key in clock.times:
            if key[:2] == (self.pe, self.number):
                if key[2:4] in (("block", block), GRID):
                    return True
                if key[2] not in ("block", "grid") and key[2] // self.threads == block:
                    return True
        return False

    def met_as_grid(self, meeting: Meeting) -> None:
        """Let those who were there know of the meeting of all threads, instead of each thread."""
        self.grids.append(meeting.came)
        clock, own = meeting.clock, (self.pe, self.number)
        for key in [k for k in clock.times if len(k) == 3 and k[:2] == own]:
            # What was fenced is told of as that of the thread.
            if not any((*key, how) in clock.times for how in (OUT, SENT)):
                del clock.times[key]
        clock.times[own + GRID] = len(self.grids)

    def event(self, thread: int, when: int) -> Clock:
        """The clock of a thread at an event: what it did before, it knows."""
        clock = self.clock(thread)
        clock.times[self.pe, self.number, thread] = when
        return clock

    def release(self, threads: Iterable[int], clock: Clock, scope: int) -> None:
        """What threads know is visible, to those of a scope, before what they write from now on."""
        for thread in threads:
            for smaller in range(scope + 1):
                self.released[thread, smaller] = clock

    def saw(
        self, thread: int, before: dict[Any, int], seen: list[tuple[int, Clock]], site: str
    ) -> None:
        """A relaxed read has seen this, for which a fence of a scope has to follow."""
        if seen:
            when = before[self.pe, self.number, thread]
            unfenced = self._unfenced.setdefault(thread, Unfenced(before, when))
            for scope, clock in seen:
                unfenced.seen.setdefault(scope, Clock()).join(Clock(clock.times))
            unfenced.last = site
            self._open[thread // self.threads].add(thread)

    def took(self, thread: int, when: int, site: str) -> Taken:
        """A thread has taken a lock."""
        taken = Taken(self, thread, when, site)
        self._taken[thread].append(taken)
        self._open[thread // self.threads].add(thread)
        return taken

    def acquire(self, threads: range, when: int, scope: int = OF_SYSTEM) -> None:
        """Threads of a block fence what they have seen of threads of a scope."""
        open_ = self._open.get(threads.start // self.threads, set())
        for thread in [thread for thread in open_ if thread in threads]:
            if scope == OF_SYSTEM:
                open_.remove(thread)
            unfenced = self._unfenced.get(thread)
            if unfenced is not None and unfenced.fence(scope):
                self._fenced[thread].append((when, self._unfenced.pop(thread)))
            for taken in reversed(self._taken.get(thread, ())):
                if scope in taken.fenced:  # and those before
                    break
                for smaller in range(scope + 1):
                    taken.fenced.setdefault(smaller, when)

    def unfenced(self, thread: int, when: int, scope: int) -> str | None:
        """The line where a thread has seen, or taken, what it has not fenced at some time."""
        for one in self._taken.get(thread, ()):
            if one.when <= when < one.fenced.get(scope, when + 1):
                return one.site
        left = [(when + 1, self._unfenced[thread])] if thread in self._unfenced else []
        for end, seen in self._fenced.get(thread, []) + left:
            if seen.first <= when < end:
                return seen.last
        return None

    def keep(self, thread: int, when: int, stamp: int) -> None:
        """Keep what a thread knows from an event on; of events with no access between, the last."""
        times, clocks, stamps = self.past.setdefault(thread, ([], [], []))
        if times and not self.accesses.any_between(thread, times[-1], when):
            for each in (times, clocks, stamps):
                each.pop()
        clock = self.block_of(thread).own[thread].copy()
        if thread in self._unfenced:
            clock.times = {
                **self._unfenced[thread].known.times,
                (self.pe, self.number, thread): when,
            }
        times.append(when)
        clocks.append(clock)
        stamps.append(stamp)

    def at(self, thread: int, when: int, all_of_block: bool = False) -> tuple[Clock, int]:
        """What a thread, or the least that a thread of its block, knew; and since which stamp."""
        if thread // self.threads not in self.blocks:
            return self.begun, self.stamp
        block = self.block_of(thread)
        k = bisect.bisect_right(block.phases, when >> PHASE) - 1
        times, clocks, stamps = self.past.get(thread, ((), (), ()))
        j = bisect.bisect_right(times, when) - 1
        if j >= 0 and times[j] >= block.phases[k] << PHASE and not all_of_block:
            return clocks[j], stamps[j]
        return block.clocks[k], block.stamps[k]

    def over(
        self, thread: int, when: int, clock: Clock, away: int | None = None, seen: bool = False
    ) -> bool:
        """Whether a clock knows that what a thread did at some time is over.

        `away`: the PE to whose memory it has stored, which has to be fenced, too. `seen`: what
        it has stored, and another PE reads.
        """
        if self.known_time(thread, clock, seen, away) > when:
            return True
        return self.all_over(thread // self.threads, when, clock, away, seen)

    def known_time(self, thread: int, clock: Clock, seen: bool, away: int | None = None) -> int:
        """Up to when a clock knows what a thread did; see `over`."""
        time = clock.time((self.pe, self.number, thread), away, seen)
        met = clock.time((self.pe, self.number, *GRID), away, seen) if self.grids else 0
        return max(time, self.grids[met - 1].get(thread, -1)) if met > 0 else time

    def all_over(
        self, block: int, when: int, clock: Clock, away: int | None = None, seen: bool = False
    ) -> bool:
        """The same of what all threads of a block did at that time."""
        key = self.pe, self.number, "block", block
        if clock.time(key, away, seen) > when >> PHASE:
            return True
        return clock.has(ENDED, self.pe, 0, self.number)
