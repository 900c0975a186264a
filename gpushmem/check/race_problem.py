"""A race in words: which of two accesses is to come first, and what would make it so."""

from __future__ import annotations

import bisect

import numpy as np

from gpushmem.artifacts.gpu_model import LANES
from gpushmem.check.accesses import Access, line_in
from gpushmem.check.calls import ROWS, Call
from gpushmem.check.history import History
from gpushmem.check.log import MET, OP, PHASE, as_records
from gpushmem.check.memory_names import of, of_tensor
from gpushmem.check.problem import Problem
from gpushmem.check.races import Race
from gpushmem.check.synchronization import Update
from gpushmem.check.vector_clock import CALLED, Clock
from gpushmem.ops import QP_ANY, QP_DEFAULT
from gpushmem.ops.row import BULK, COPY, RETURN, THREAD

__all__ = ["RaceProblem", "race_problems"]


def race_problems(history: History, found: list[Race]) -> list[RaceProblem]:
    """All races, in words: what would mend one may mend others."""
    races = [RaceProblem(history, one) for one in found]
    flags = [race for race in races if race.is_of_a_flag()]
    for race in races:
        race.flags, race.races = flags, races
    return races


class RaceProblem(Problem):
    """One race, in words."""

    def __init__(self, history: History, race: Race) -> None:
        self.history, self.race = history, race
        self.threads = [
            access.thread + access.step * element
            for access, element in zip(race[:2], race.element, strict=True)
        ]
        both = list(zip(race[:2], self.threads, strict=True))
        # An operation that goes on after its call comes first, then what writes.
        both.sort(key=lambda one: (not _goes_on(one[0]), not one[0].writes))
        self._name(both)
        if _goes_on(self.second) and not self._half_ordered():
            self._name(both[::-1])
            if not self._half_ordered():
                self._name(both)
        self.races: list[RaceProblem] = []  # of the job
        self.flags: list[RaceProblem] = []  # those of words that are waited for
        self.seen = race.seen

    def _name(self, both: list[tuple[Access, int]]) -> None:
        """Let one access be the first, and another one the second."""
        (self.first, self.one), (self.second, self.two) = self.accesses = both

    def kind(self) -> str:
        """The kind of bug."""
        if self.first.atomic and self.first.too_narrow_for(self.second):
            return "scope"
        return "ordering" if self._half_ordered() else "race"

    def what(self) -> str:
        """What is wrong, in a sentence."""
        a, b = self.first, self.second
        name = a.op.name if a.op else "a store" + " to another PE's memory" * (a.away is not None)
        if self._half_ordered():
            if not a.writes:
                return f"the source of {name} is changed before it has been read"
            if a.op and a.op.plain in ("get", "copy_async", "copy_bulk"):
                return f"what {name} fetches is used before it has arrived"
            return f"what {name} writes may arrive after it is {'written' if b.writes else 'read'}"
        if a.atomic and b.atomic and a.too_narrow_for(b):
            return "an atomic access is so for the threads of its own GPU only"
        if a.atomic and b.atomic and a.is_other_word(b):
            return "atomic accesses of different widths, or to parts of a word, are not atomic"
        if a.atomic and b.atomic:
            return "a word is set and changed in any order: the change may be lost"
        two = "two writes" if a.writes and b.writes else "a write and a read"
        return f"nothing orders {two} of the same memory"

    def memory(self) -> str:
        """Where."""
        access = self.second if self.second.size <= self.first.size else self.first
        start = access.start + access.stride * self._element(access)
        both = [one for one, _ in self.accesses if access.space[0] == "memory"]
        tensors = (of_tensor(self.history, one, start) for one in both)
        return next(filter(None, tensors), None) or of(self.history, access, start)

    def _element(self, access: Access) -> int:
        which = 0 if access is self.race.first else 1
        return self.race.element[which]

    def _half_ordered(self) -> bool:
        """Whether the call of the first is known to come first, and only its end is not."""
        return self._called(self.history.clock_of(self.second, self.two))

    def _called(self, clock: Clock) -> bool:
        """Whether a clock knows that the first has been called, or stored but not fenced."""
        access = self.first
        if access.call is not None:
            return access.call.over(CALLED).known(clock)
        launch = self.history.pes[access.pe].launches.get(access.launch)
        if launch is None or not access.writes:
            return False
        return launch.over(self.one, access.when, clock)

    def cure(self) -> str:
        """What is missing."""
        first = self.first.op
        if first is not None and first.facts.completion == BULK:
            return (
                "missing: mbarrier_wait, before the other access for the phase in which copy_bulk "
                "completes, or before copy_bulk for one in which the other thread has arrived"
            )
        half = self.kind() == "ordering"
        return f"missing: {self._missing_order() if half else self._missing_sync()}"

    def _missing_order(self) -> str:
        """What would make sure of the end of the first."""
        a = self.first
        if a.op is not None and a.op.facts.completion == COPY:
            return "copy_async_wait by the thread that copies, before the two synchronise"
        quiet, remote = _named_by(a.call, "quiet"), a.op is None or _remote(a)
        if not a.writes and not remote:
            quiet = f"flush() or {quiet}"
        told = self._told_by() if remote or a.pe != self.second.pe else None
        if told is None:
            meeting = self._meeting() if remote else None
            if meeting is not None:
                return f"{quiet} before {meeting.op.name} at {line_in(meeting.site)}, by PE {a.pe}"
            return f"{quiet} between the two" + f", by PE {a.pe}" * remote
        call, there = told
        line = f"{call.op.name} at {line_in(call.site)}"
        if not there or not a.writes:
            return f"{quiet} before {line}"
        if a.call is not None and QP_DEFAULT != a.call.qp != call.qp != QP_DEFAULT:
            return f"one qp_fence() of the queue pairs of both before {line}, or {quiet}"
        if a.call is not None and (a.call.qp == QP_DEFAULT) != (call.qp == QP_DEFAULT):
            return f"{quiet} before {line}: fences order no operations on different queue pairs"
        both = a.op is not None and a.op.plain == "put" and call.op.plain == "signal_op"
        instead = f", or {a.op.base}_signal instead of the two calls" if a.op and both else ""
        return f"{_named_by(call, 'fence')} before {line}{instead}"

    def _missing_sync(self) -> str:
        """What would order the two."""
        a, b = self.first, self.second
        if self.kind() == "scope":
            narrow = b if a.wide else a
            return (
                "an operation of gpushmem, such as atomic_add, or an access of the scope sys, at "
                f"{narrow.site}"
            )
        if a.atomic and b.atomic and a.is_other_word(b):
            return self._one_word()
        for flag in self.flags:
            if flag is self or self._would_be_told_by(flag):
                return flag.cure_of_flag()
        cure = self._met_by_another() or self._unfenced() or self._seen_unfenced()
        if cure is not None:
            return cure
        if a.pe != b.pe:
            return (
                f"PE {a.pe} has to tell PE {b.pe}, or the reverse, that it is done, by a signal "
                "that the other waits for, or both have to meet in a barrier"
            )
        if a.launch != b.launch:
            calls = [one for one, _ in self.accesses if self._goes_on_in_torch(one)]
            if calls:
                call = self.history.pes[a.pe].launches[calls[0].launch]
                other = b if calls[0] is a else a
                return f"wait() of the call at {call.site} before {line_in(other.site)}"
            return "the host has to wait for the kernel, or both run on one stream"
        threads = self.history.pes[a.pe].launches[a.launch].threads
        if a.site == b.site and any(race.is_twice_written(a.site) for race in self.races):
            return "an operation of cuda.atomic, or another element for each thread"
        if self.one // threads != self.two // threads:
            return "blocks of a grid meet in grid.sync(), or when the kernel ends"
        one, two = self.one % threads // LANES, self.two % threads // LANES
        barrier = f"cuda.syncthreads(){' or cuda.syncwarp()' * (one == two)}"
        if a.site == b.site:
            return f"{barrier} between one step and the next"
        around = self._around_a_loop()
        if around is not None:
            early, late = map(line_in, around)
            return f"{barrier} after {early}, before the next step comes to {late}"
        return f"{barrier} between the two"

    def _goes_on_in_torch(self, access: Access) -> bool:
        """Whether a call of torch.distributed makes an access, perhaps after it has returned."""
        return "tensors" in self.history.pes[access.pe].launch_facts.get(access.launch, {})

    def is_twice_written(self, site: str) -> bool:
        """Whether threads write the same element at this line, plainly."""
        both = self.first, self.second
        return all(a.site == site and a.writes and a.op is None and not a.atomic for a in both)

    def _around_a_loop(self) -> tuple[str, str] | None:
        """The lines of the two, if the one that follows the last barrier is the later line.

        A thread comes from there to the other one through the head of a loop.
        """
        a, b = self.first, self.second
        pe = self.history.pes[a.pe]
        block, records = self.one // pe.launches[a.launch].threads, pe.trace.records
        last = records[
            (records["kind"] == MET) & (records["launch"] == a.launch)
            & (records["words"][:, 0] == block) & (records["words"][:, 1] == a.when >> PHASE)
        ]  # fmt: skip
        early, late = (a, b) if _comes_before(b.site, a.site) else (b, a)
        if not len(last) or a.when >> PHASE != b.when >> PHASE:
            return None
        barrier = pe.site_of(next(as_records(last)))
        between = _comes_before(late.site, barrier) and _comes_before(barrier, early.site)
        return (early.site, late.site) if between else None

    def _one_word(self) -> str:
        """What makes two atomic accesses ones of the same word."""
        narrow, wide = sorted(self.accesses, key=lambda one: one[0].size)[:2]
        n, waited = wide[0].size, self.second.op is not None and self.second.op.facts.waits_for
        order = ", or an order" * (not waited)
        if narrow[0].size == n:
            return f"one word for both: they begin at different bytes of it{order}"
        names = [one.op.name if one.op else "cuda.atomic" for one, _ in (narrow, wide)]
        return f"{names[0]} of all {n} bytes at {line_in(narrow[0].site)}, as {names[1]}{order}"

    # --- flags

    def is_of_a_flag(self) -> bool:
        """Whether the second waits for what the first writes, which is not atomic."""
        op = self.second.op
        return bool(op and op.facts.waits_for) and self.first.writes and not self.first.atomic

    def cure_of_flag(self) -> str:
        """What the word is to be written with."""
        a, b = self.first, self.second
        assert b.op is not None
        what = "the store" if a.op is None else a.op.name
        width = f" of all {b.size} bytes" * (a.size < b.size)
        return (
            f"p, atomic_set or signal_op{width} instead of {what} at {line_in(a.site)}, as "
            f"{b.op.name} waits for it"
        )

    def _would_be_told_by(self, flag: RaceProblem) -> bool:
        """Whether a flag is written after the first, and waited for before the second."""
        written = self.history.clock_of(flag.first, flag.one)
        return self._called(written) and self.history.over(
            flag.second, flag.two, self.history.clock_of(self.second, self.two)
        )

    # --- blocks

    def _met_by_another(self) -> str | None:
        """The barrier that is missing where another thread of a block waits for all, or tells.

        Whichever of the two accesses comes first then.
        """
        both = (self.first, self.one), (self.second, self.two)
        if self.first.pe == self.second.pe:
            return None
        found = (
            find(*one, *other)
            for one, other in (both, both[::-1])
            for find in (self._waited_by_another, self._told_by_another)
        )
        return next((cure for cure in found if cure is not None), None)

    def _waited_by_another(self, first: Access, one: int, second: Access, two: int) -> str | None:
        """The barrier after a wait for the first by a thread of the second's block.

        That comes before the second, and no barrier between them.
        """
        launch = self.history.pes[second.pe].launches.get(second.launch)
        if launch is None:
            return None
        alone = second.op is None or second.op.scope == THREAD
        for wait in self.history.accesses:
            if (
                (wait.pe, wait.launch) == (second.pe, second.launch)
                and wait.op is not None and wait.op.facts.waits_for
                and wait.thread // launch.threads == two // launch.threads
                and (wait.thread != two or not alone)
                and wait.when >> PHASE == second.when >> PHASE
                and _comes_before(wait.site, second.site)
                and self._is_told(wait, first, one)
            ):  # fmt: skip
                lane = wait.thread % launch.threads
                return (
                    f"cuda.syncthreads() after {wait.op.name} at {line_in(wait.site)}: thread "
                    f"{lane} of the block has waited there, this one has not"
                )
        return None

    def _is_told(self, wait: Access, first: Access, one: int) -> bool:
        """Whether a wait learns that the first is over: from what it sees, or from whatever may be.

        That is all that is written to its word.
        """
        launch = self.history.pes[wait.pe].launches[wait.launch]
        times, clocks, _ = launch.past.get(wait.thread, ([], [], []))
        k = bisect.bisect_right(times, wait.when)
        tells = [
            (
                self.history.over(first, one, write.told(None)),
                k < len(times) and write.over.known(clocks[k]),
            )
            for (space, start), word in self.history.waits.words.items()
            if space == wait.space and wait.low <= start < wait.end
            for write in word.writes.values()
            if isinstance(write.call, Call)
        ]
        return (True, True) in tells or (bool(tells) and all(told for told, _ in tells))

    def _told_by_another(self, first: Access, one: int, second: Access, two: int) -> str | None:
        """The barrier before the call by which a thread of the first's kernel tells the second."""
        clock = self.history.clock_of(second, two)
        launch = self.history.pes[first.pe].launches.get(first.launch)
        if launch is None:
            return None
        since, told = self.history.stamp_of(first, one), []
        for word in self.history.waits.words.values():
            for write in word.writes.values():
                call = write.call
                if not isinstance(call, Call) or not write.over.known(clock):
                    continue
                pe, number, thread = call.who()
                if (pe, number) != (first.pe, first.launch) or thread == one:
                    continue
                near = thread // launch.threads == one // launch.threads
                when = call.record.clock
                if (
                    when >> PHASE == first.when >> PHASE and _comes_before(first.site, call.site)
                    if near
                    else call.stamp > since
                ):
                    told.append((call.stamp, near, thread, call))
        if not told:
            return None
        _, near, thread, call = min(told, key=lambda one: one[0])
        return (
            f"{'cuda.syncthreads()' if near else 'grid.sync()'} before {call.op.name} at "
            f"{line_in(call.site)}: thread {thread % launch.threads} of "
            f"{'the' if near else 'another'} block tells PE {second.pe}, and does not know of this"
        )

    def _seen_unfenced(self) -> str | None:
        """The fence after the atomic operation that has seen that the other is over."""
        for access, thread in ((self.second, self.two), (self.first, self.one)):
            launch = self.history.pes[access.pe].launches.get(access.launch)
            if launch is None or access.op is not None:
                continue
            scope = self.history.scope(self.first, self.one, self.second, self.two)
            seen = launch.unfenced(thread, access.when, scope)
            if seen is not None:
                system = "_system" * (self.first.pe != self.second.pe)
                return f"cuda.threadfence{system}() after the atomic operation at {line_in(seen)}"
        return None

    def _unfenced(self) -> str | None:
        """The fence before the atomic operation that would then tell the second of the first."""
        history, clock = self.history, self.history.clock_of(self.second, self.two)
        own = self.second.pe, self.second.launch, self.two
        block = history.pes[self.second.pe].block_of(own)
        for where, word in history.waits.words.items():
            locked = any(taken.known(clock) for taken, _ in history.waits.taken.get(where, ()))
            for write in word.writes.values():
                by = write.call
                line = line_in(by.site)
                if by.who() == own:
                    continue
                if history.over(self.first, self.one, write.told(block)) or not (
                    locked or write.over.known(clock)
                ):
                    continue
                if isinstance(by, Call) and self._called(write.told(None)):
                    order = "fence" if where[0] == self.first.space else "quiet"
                    return f"{_named_by(by, order)} before {by.op.name} at {line}"
                if isinstance(by, Update) and history.over(self.first, self.one, by.clock):
                    system = "_system" * (self.first.pe != self.second.pe)
                    return f"cuda.threadfence{system}() before the {by.what} at {line}"
        return None

    def _meeting(self) -> Call | None:
        """The first collective of the first's PE between the two."""
        a, pe = self.first, self.history.pes[self.first.pe]
        start, end = (self.history.stamp_of(*one) for one in self.accesses)
        records, rows = pe.trace.records, [k for k, op in enumerate(ROWS) if op.facts.meets]
        between = (records["stamp"] > start) & (records["stamp"] < end)
        found = records[between & (records["kind"] == OP) & np.isin(records["words"][:, 0], rows)]
        first = min(as_records(found), key=lambda record: record.stamp, default=None)
        return first and Call(a.pe, ROWS[first.words[0]], first, pe.site_of(first))

    def _told_by(self) -> tuple[Call, bool] | None:
        """The call by which the second learned of the first, and whether a fence is enough.

        It is if the call writes to the same PE, and the second has not fetched it from there.
        """
        b, clock = self.second, self.history.clock_of(self.second, self.two)
        fetched = {
            (access.space, access.start)
            for access in self.history.accesses
            if access.pe == b.pe and access.op is not None and access.op.returns.dtype is not None
            and access.call is not None and access.call.pe >= 0
        }  # fmt: skip
        told = [
            (write.call, space == self.first.space and (space, start) not in fetched)
            for (space, start), word in self.history.waits.words.items()
            for write in word.writes.values()
            if write.over.known(clock)
            and self._called(write.told(None))
            and isinstance(write.call, Call)
        ]
        return min(told, key=lambda one: one[0].stamp, default=None)


def _comes_before(site: str, other: str) -> bool:
    """Whether a line is before another one of the same function; of two functions: maybe."""
    (line, _, function), (other_line, _, other_function) = (
        one.partition(" in ") for one in (site, other)
    )
    (file, _, number), (other_file, _, other_number) = (
        one.rpartition(":") for one in (line, other_line)
    )
    alike = (file, function) == (other_file, other_function)
    return not (alike and number.isdigit() and other_number.isdigit()) or (
        int(number) < int(other_number)
    )


def _named_by(call: Call | None, orders: str) -> str:
    """The fence or quiet of a call's queue pair, as a program calls it."""
    on_qp = call is not None and call.qp not in (QP_DEFAULT, QP_ANY)
    return f"{'qp_' * on_qp}{orders}()"


def _goes_on(access: Access) -> bool:
    """Whether an access may take place after the call that makes it has returned."""
    if access.op is None:
        return False
    completion = access.op.facts.completion
    return access.writes or (completion is not None and completion.source != RETURN)


def _remote(access: Access) -> bool:
    """Whether an operation's access is to memory that the caller named with a PE."""
    return access.space != ("heap", access.pe) if access.space[0] == "heap" else False
