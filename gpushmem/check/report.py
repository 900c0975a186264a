"""What the checker has found, as text for people and as data for programs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from gpushmem.artifacts.gpu_model import LANES
from gpushmem.check.accesses import Access
from gpushmem.check.bounds import Outside
from gpushmem.check.calls import Call
from gpushmem.check.history import Divergence, History
from gpushmem.check.log import BLOCK_BITS
from gpushmem.check.lost_wakeups import Missed, NotResident
from gpushmem.check.races import Race
from gpushmem.check.synchronization import Update
from gpushmem.check.uninitialized import Unwritten
from gpushmem.check.vector_clock import CALLED, Clock
from gpushmem.ops import CMP_EQ, QP_ANY, QP_DEFAULT
from gpushmem.ops.row import RETURN

__all__ = ["KINDS", "Problem", "problems", "text_of"]

KINDS = {
    "race": "nothing orders two accesses to the same memory",
    "ordering": "an operation is used before it is sure to be over",
    "scope": "an operation is atomic for fewer threads than use it",
    "missed": "a value that is waited for may be replaced before it is seen",
    "resident": "a block waits for another, which may not run at the same time",
    "bounds": "memory is accessed that belongs to no array",
    "unwritten": "memory is read that nobody has written",
    "barrier": "threads of a block wait at different barriers",
}


def problems(
    history: History,
    found: list[Race],
    missed: list[Missed],
    not_resident: list[NotResident],
    bounds: list[Outside],
    unwritten: list[Unwritten],
) -> list[Problem]:
    """What is to be reported: of each kind, in the order of the source, whenever it happened."""
    kinds: tuple[Iterable[Problem], ...] = (
        (
            (_OutOfBounds if one.access.space[0] == "heap" else _Beside)(history, one)
            for one in bounds
        ),
        (_Unwritten(history, one) for one in unwritten),
        (_Race(history, one) for one in found),
        (_Missed(history, one) for one in missed),
        (_NotResident(history, one) for one in not_resident),
        _divergent(history),
    )
    return [problem for kind in kinds for problem in sorted(kind, key=_place)]


def _place(problem: Problem) -> list[tuple[str, int]]:
    """The file and line of each access of a problem."""
    sites = (access.site.partition(" in ")[0].rpartition(":") for access, _ in problem.accesses)
    return [(file, int(line) if line.isdecimal() else 0) for file, _, line in sites]


def text_of(found: list[str]) -> str:
    """The report of these problems; those that one line mends are told with the first of them."""
    n, causes = len(found), _by_cure(found)
    if not n:
        return ""
    of = f", {len(causes)} cause{'s' * (len(causes) != 1)}" * (len(causes) < n)
    shown = (
        first + "".join(f"  the same cure mends: {_in_short(other)}\n" for other in others)
        for first, *others in causes
    )
    return f"gpushmem check: {n} problem{'s' * (n != 1)} found{of}\n\n" + "\n".join(shown)


def _by_cure(found: list[str]) -> list[list[str]]:
    """The problems together that a cure mends at one line."""
    groups: dict[str, list[str]] = {}
    for text in found:
        cure = CURE.search(text)
        groups.setdefault(cure[1] if cure else text, []).append(text)
    return list(groups.values())


CURE = re.compile(r"^  missing: (.* at \S+:\d+)", re.MULTILINE)
WHERE = re.compile(r" it at (\S+:\d+)")


def _in_short(text: str) -> str:
    """A problem in a line: what, and the lines of its accesses."""
    return f"{text.partition(chr(10))[0]} ({' and '.join(WHERE.findall(text))})"


class Problem:
    """One problem, in words."""

    history: History
    accesses: list[tuple[Access, int]]  # each with the thread that makes it
    seen: int
    label = "memory"  # of what `memory` tells

    def kind(self) -> str:
        """The kind of bug."""
        raise NotImplementedError

    def what(self) -> str:
        """What is wrong, in a sentence."""
        raise NotImplementedError

    def memory(self) -> str:
        """Where."""
        raise NotImplementedError

    def cure(self) -> str:
        """What is missing."""
        raise NotImplementedError

    def text(self) -> str:
        """For people."""
        lines = [f"{self.kind()}: {self.what()}", f"  {self.label}: {self.memory()}"]
        for access, thread in self.accesses:
            lines.append(f"  {self.who(access, thread)} {self.does(access)} it at {access.site}")
            if source := self.source(access.site):
                lines.append(f"      {source}")
        lines.append(f"  {self.cure()}")
        if self.seen > 1:
            lines.append(f"  (seen {self.seen} times at these lines)")
        return "\n".join(lines) + "\n"

    def data(self) -> dict[str, Any]:
        """For programs."""
        return {
            "kind": self.kind(),
            "message": self.what(),
            "memory": self.memory(),
            "accesses": [
                {
                    "by": self.who(access, thread), "does": self.does(access), "line": access.site,
                    "operation": access.op.name if access.op else None,
                }
                for access, thread in self.accesses
            ],
            "cure": self.cure(),
            "count": self.seen,
        }  # fmt: skip

    def key(self) -> Any:
        """What other runs of the job find is the same if this is."""
        return self.kind(), tuple((access.site, self.does(access)) for access, _ in self.accesses)

    # --- the parts

    def does(self, access: Access) -> str:
        """What an access does."""
        return _does(access)

    def who(self, access: Access, thread: int) -> str:
        """Who makes an access."""
        return ("" if self.history.without_pes else f"PE {access.pe}, ") + self._who(access, thread)

    def _who(self, access: Access, thread: int) -> str:
        if not access.launch:
            return "the host,"
        pe = self.history.pes[access.pe]
        facts = pe.launch_facts[access.launch]
        threads = pe.launches[access.launch].threads
        block, lane = divmod(thread, threads)
        if facts["kernel"].endswith(" on the host"):
            return "the host,"
        if facts.get("work"):
            return f"{facts['kernel']},"
        each = f"block {block}" if access.op and access.op.scope == "block" else (
            f"block {block}, thread {lane}"
        )  # fmt: skip
        return f"kernel {facts['kernel']}, {each},"

    def source(self, site: str) -> str:
        """The text of a line."""
        return self.history.source(site)


class _OutOfBounds(Problem):
    """An access outside of all arrays."""

    def __init__(self, history: History, outside: Outside) -> None:
        self.history, self.access, self.place = history, outside.access, outside.place
        self.accesses, self.seen = [(outside.access, outside.thread)], outside.seen
        pe = history.pes[outside.access.pe]
        live = {offset for offset, _ in pe.live[pe.launches[outside.access.launch].live]}
        before = [a for a in pe.arrays if a["array"] in live and a["array"] < outside.place]
        self.array = max(before, key=lambda a: a["array"], default=None)

    def kind(self) -> str:
        return "bounds"

    def what(self) -> str:
        verb = "written" if self.access.writes else "read"
        return f"memory that belongs to no array is {verb}"

    def memory(self) -> str:
        owner = self.access.space[1]
        if self.array is None:
            return f"offset {self.place:#x} of the symmetric heap of PE {owner}, before all arrays"
        end = self.array["array"] + self.array["bytes"]
        return f"{_past(self.place - end)} {_named(self.array, owner)}"

    def cure(self) -> str:
        if self.array is None:
            return "missing: a test of the index"
        return (
            f"missing: a test of the index: `{self.array['name'] or 'the array'}` has shape "
            f"{tuple(self.array['shape'])}"
        )


class _Beside(_OutOfBounds):
    """An access beside an array of numba.cuda."""

    def __init__(self, history: History, outside: Outside) -> None:
        self.history, self.access, self.place = history, outside.access, outside.place
        self.accesses, self.seen = [(outside.access, outside.thread)], outside.seen
        near = (
            memory
            for memory in history.pes[outside.access.pe].memories
            if -memory["guard"] <= self.place - memory["memory"] < memory["bytes"] + memory["guard"]
        )
        self.memory_of = next(near)

    def memory(self) -> str:
        start = self.memory_of["memory"]
        named = _named_memory(self.history, self.access.pe, self.memory_of)
        if self.place < start:
            return f"{start - self.place} bytes before the start of {named}"
        return f"{_past(self.place - start - self.memory_of['bytes'])} {named}"

    def cure(self) -> str:
        name = self.memory_of["name"] or "the array"
        return f"missing: a test of the index: `{name}` has {self.memory_of['bytes']} bytes"


def _past(nbytes: int) -> str:
    return f"{nbytes} bytes past the end of" if nbytes else "just past the end of"


class _Divergent(Problem):
    """A meeting of a block at two barriers."""

    label = "meeting"

    def __init__(self, history: History, divergence: Divergence, seen: int) -> None:
        self.history, self.divergence, self.seen = history, divergence, seen
        both = sorted((divergence.first, divergence.second), key=lambda one: one[::-1])
        self.accesses = [(_waiting(divergence, site), thread) for thread, site in both]

    def kind(self) -> str:
        return "barrier"

    def what(self) -> str:
        return KINDS["barrier"]

    def memory(self) -> str:
        return "one barrier of the block, by threads that have gone different ways"

    def does(self, access: Access) -> str:
        return "waits for"

    def cure(self) -> str:
        return "missing: one syncthreads() that all threads reach: a GPU may wait for ever here"


def _waiting(divergence: Divergence, site: str) -> Access:
    """A wait at a barrier, for what names an access."""
    return Access(
        ("memory", divergence.pe), 0, 0, 0, 1, False, False, divergence.pe, divergence.launch, 0, 0,
        0, site, None, None, None, None, 0,
    )  # fmt: skip


def _divergent(history: History) -> list[Problem]:
    """The meetings at two barriers, those at the same lines as one."""
    found: dict[Any, list[Divergence]] = {}
    for one in history.divergences:
        lines = frozenset((one.first[1], one.second[1]))
        if len(lines) > 1:
            found.setdefault(lines, []).append(one)
    return [_Divergent(history, some[0], len(some)) for some in found.values()]


class _Endless(Problem):
    """A wait that may never end, in words."""

    def __init__(self, history: History, found: Missed | NotResident) -> None:
        self.history, self.element, self.seen = history, found.element, found.seen
        self.write, self.wait = found.write, found.wait
        self.accesses = [(self.write, self.write.thread), (self.wait, self.wait.thread)]

    def what(self) -> str:
        assert self.wait.op is not None
        return f"{self.wait.op.name} may never end: {self.why()}"

    def why(self) -> str:
        """Why it may not."""
        raise NotImplementedError

    def memory(self) -> str:
        at = self.wait.start + self.element * self.wait.size
        return _of_heap(self.history, self.wait, at)


class _NotResident(_Endless):
    """A wait for a block that may not run."""

    def kind(self) -> str:
        return "resident"

    def why(self) -> str:
        threads = self.history.pes[self.write.pe].launches[self.write.launch].threads
        return f"block {self.write.thread // threads} may not run at the same time"

    def cure(self) -> str:
        name = self.history.pes[self.write.pe].launch_facts[self.write.launch]["kernel"]
        return (
            f"missing: @gpushmem.jit(collective=True) for kernel {name}: all its blocks then run "
            "at the same time"
        )


class _Missed(_Endless):
    """A wait for what may be replaced."""

    def __init__(self, history: History, missed: Missed) -> None:
        super().__init__(history, missed)
        self.missed = missed

    def kind(self) -> str:
        return "missed"

    def why(self) -> str:
        return "its value may be replaced before it is seen"

    def cure(self) -> str:
        waiting, writing = self.wait.pe, self.write.pe
        if self.missed.unordered:
            return f"missing: fence() between this write and that of {self.missed.unordered}"
        call = self.wait.call
        grows = ", or CMP_GE if values only grow" * (call is not None and call.compare == CMP_EQ)
        if waiting == writing:
            return f"missing: this write has to come after the wait{grows}"
        return (
            f"missing: PE {waiting} has to tell PE {writing}, before this write, that the wait has "
            f"ended{grows}"
        )


class _Unwritten(Problem):
    """A read of memory that is unwritten."""

    def __init__(self, history: History, found: Unwritten) -> None:
        self.history, self.access, self.array = history, found.access, found.array
        self.place, self.seen = found.place, found.seen
        self.accesses = [(found.access, found.thread)]

    def kind(self) -> str:
        return "unwritten"

    def what(self) -> str:
        return KINDS["unwritten"]

    def memory(self) -> str:
        owner = self.access.space[1]
        if self.array is None:
            return _of_block(self.history, owner, self.place)
        return _of_array(self.array, owner, self.place)

    def cure(self) -> str:
        if self.array is None:
            return "missing: a write before this: blocks start with unwritten shared memory"
        return "missing: a write before this, or zeros() instead of empty()"


def _of_array(array: dict[str, Any], owner: int, place: int) -> str:
    """The element of an array that a byte is in, for people."""
    return _named(array, owner, f"[{(place - array['array']) // array['item']}]")


def _named(array: dict[str, Any], owner: int, index: str = "") -> str:
    """An array, for people."""
    name = f"`{array['name'] or 'symmetric array'}{index}`"
    return (
        f"{name} on PE {owner} ({array['dtype']}, shape {tuple(array['shape'])}, allocated at "
        f"{array['where']})"
    )


def _of_block(history: History, owner: int, place: int) -> str:
    """A byte of a block's shared memory, for people."""
    whose = "" if history.without_pes else f" of PE {owner}"
    return f"shared memory{whose}, byte {place & (1 << BLOCK_BITS) - 1}"


def _of_device(history: History, owner: int, start: int) -> str:
    """A byte of memory that is not symmetric, for people."""
    for memory in reversed(history.pes[owner].memories):
        if memory["memory"] <= start < memory["memory"] + max(memory["bytes"], 1):
            named = _named_memory(history, owner, memory)
            return f"byte {start - memory['memory']} of {named}"
    return f"memory of PE {owner} that is not symmetric, address {start:#x}"


def _named_memory(history: History, owner: int, memory: dict[str, Any]) -> str:
    """Memory that is not symmetric, for people."""
    whose = "" if history.without_pes else f" on PE {owner}"
    return (
        f"`{memory['name'] or 'device array'}`{whose} ({memory['bytes']} bytes, allocated at "
        f"{memory['where']})"
    )


def _of_heap(history: History, access: Access, start: int) -> str:
    """The element of an array that an access is to, for people."""
    owner = access.space[1]
    for array in reversed(history.pes[access.pe].arrays):
        if array["array"] <= start < array["array"] + max(array["bytes"], 1):
            return _of_array(array, owner, start)
    return f"offset {start:#x} of the symmetric heap of PE {owner}"


class _Race(Problem):
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
        (self.first, self.one), (self.second, self.two) = self.accesses = both
        self.seen = race.seen

    def kind(self) -> str:
        if self.first.atomic and self.first.too_narrow_for(self.second):
            return "scope"
        return "ordering" if self._half_ordered() else "race"

    def what(self) -> str:
        a, b = self.first, self.second
        name = a.op.name if a.op else "a store" + " to another PE's memory" * (a.away is not None)
        if self._half_ordered():
            if not a.writes:
                return f"the source of {name} is changed before it has been read"
            if a.op and a.op.plain == "get":
                return f"what {name} fetches is used before it has arrived"
            return f"what {name} writes may arrive after it is {'written' if b.writes else 'read'}"
        if a.atomic and b.atomic and a.too_narrow_for(b):
            return "cuda.atomic is atomic for the threads of its own GPU only"
        if a.atomic and b.atomic and a.is_other_word(b):
            return "atomic accesses of different widths, or to parts of a word, are not atomic"
        if a.atomic and b.atomic:
            return "a word is set and changed in any order: the change may be lost"
        two = "two writes" if a.writes and b.writes else "a write and a read"
        return f"nothing orders {two} of the same memory"

    def memory(self) -> str:
        access = self.second if self.second.size <= self.first.size else self.first
        space, start = access.space, access.start + access.stride * self._element(access)
        if space[0] == "shared":
            return _of_block(self.history, space[1], start)
        if space[0] == "memory":
            return _of_device(self.history, space[1], start)
        return _of_heap(self.history, access, start)

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
        half = self.kind() == "ordering"
        return f"missing: {self._missing_order() if half else self._missing_sync()}"

    def _missing_order(self) -> str:
        """What would make sure of the end of the first."""
        a = self.first
        quiet = _named_by(a.call, "quiet")
        if not a.writes:
            remote = a.op is not None and _remote(a)
            return (
                f"{quiet} between the two, by PE {a.pe}"
                if remote
                else f"flush() or {quiet} between the two"
            )
        if a.op is not None and not _remote(a):
            return f"{quiet} between the two"
        told = self._told_by()
        if told is None:
            return f"{quiet} between the two, by PE {a.pe}"
        call, there = told
        line = f"{call.op.name} at {call.site.partition(' in ')[0]}"
        if not there:
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
            narrow = a if a.op is None else b
            return f"an operation of gpushmem, such as atomic_add, at {narrow.site}"
        if a.atomic and b.atomic and a.is_other_word(b):
            return f"one width for both, {a.size} and {b.size} bytes here, or an order"
        if b.op is not None and b.op.facts.waits_for and a.writes and not a.atomic:
            what = "the store" if a.op is None else a.op.name
            return f"p, atomic_set or signal_op instead of {what}, as {b.op.name} waits for it"
        neighbour = self._neighbour()
        if neighbour is not None:
            return (
                f"cuda.syncthreads() between: thread {neighbour} of the block has waited for it, "
                "this one has not"
            )
        unfenced = self._unfenced()
        if unfenced is not None:
            return unfenced
        if a.pe != b.pe:
            told = self._told_by_another()
            if told is not None:
                return told
            return (
                f"PE {a.pe} has to tell PE {b.pe}, or the reverse, that it is done, by a signal "
                "that the other waits for, or both have to meet in a barrier"
            )
        if a.launch != b.launch:
            return "the host has to wait for the kernel, or both run on one stream"
        threads = self.history.pes[a.pe].launches[a.launch].threads
        if self.one // threads != self.two // threads:
            return "blocks of a grid meet in grid.sync(), or when the kernel ends"
        one, two = self.one % threads // LANES, self.two % threads // LANES
        return f"cuda.syncthreads(){' or cuda.syncwarp()' * (one == two)} between the two"

    def _neighbour(self) -> int | None:
        """A thread of the second's block that has come to know that the first is over."""
        b = self.second
        launch = self.history.pes[b.pe].launches.get(b.launch)
        if launch is None or self.first.pe == b.pe:
            return None
        for thread, (_, clocks, _) in launch.past.items():
            near = thread // launch.threads == self.two // launch.threads and thread != self.two
            if near and self.history.over(self.first, self.one, clocks[-1]):
                return thread % launch.threads
        return None

    def _told_by_another(self) -> str | None:
        """What the thread of the first lacks, if another one of its kernel tells the second."""
        a, clock = self.first, self.history.clock_of(self.second, self.two)
        launch = self.history.pes[a.pe].launches.get(a.launch)
        if launch is None:
            return None
        since = a.stamp or launch.at(self.one, a.when)[1]
        told = [
            write.call
            for word in self.history.waits.words.values()
            for write in word.writes.values()
            if isinstance(write.call, Call)
            and (write.call.by, write.call.record.launch) == (a.pe, a.launch)
            and write.call.record.thread != self.one
            and write.call.stamp > since
            and write.over.known(clock)
        ]
        if not told:
            return None
        call = min(told, key=lambda call: call.stamp)
        thread = call.record.thread
        near = thread // launch.threads == self.one // launch.threads
        line = f"{call.op.name} at {call.site.partition(' in ')[0]}"
        return (
            f"{'cuda.syncthreads()' if near else 'grid.sync()'} before {line}: thread "
            f"{thread % launch.threads} of {'the' if near else 'another'} block tells PE "
            f"{self.second.pe}, and does not know of this"
        )

    def _unfenced(self) -> str | None:
        """The fence before the atomic operation that would then tell the second of the first."""
        history, clock = self.history, self.history.clock_of(self.second, self.two)
        for where, word in history.waits.words.items():
            locked = any(taken.known(clock) for taken, _ in history.waits.taken.get(where, ()))
            for write in word.writes.values():
                by = write.call
                line = by.site.partition(" in ")[0]
                if history.over(self.first, self.one, write.clock) or not (
                    locked or write.over.known(clock)
                ):
                    continue
                if isinstance(by, Call) and self._called(write.clock):
                    order = "fence" if where[0] == self.first.space else "quiet"
                    return f"{_named_by(by, order)} before {by.op.name} at {line}"
                if isinstance(by, Update) and history.over(self.first, self.one, by.clock):
                    system = "_system" * (self.first.pe != self.second.pe)
                    return f"cuda.threadfence{system}() before the {by.what} at {line}"
        return None

    def _told_by(self) -> tuple[Call, bool] | None:
        """The call by which the second learned of the first, and whether it is to the same PE."""
        clock = self.history.clock_of(self.second, self.two)
        told = [
            (write.call, space == self.first.space)
            for (space, _), word in self.history.waits.words.items()
            for write in word.writes.values()
            if write.over.known(clock)
            and self._called(write.clock)
            and isinstance(write.call, Call)
        ]
        return min(told, key=lambda one: one[0].stamp, default=None)


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


def _does(access: Access) -> str:
    verb = "writes" if access.writes else "reads"
    return f"{access.op.name} {verb}" if access.op else verb
