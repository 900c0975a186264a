"""What the checker has found, as text for people and as data for programs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from gpushmem.check.accesses import Access, line_in
from gpushmem.check.bounds import Outside
from gpushmem.check.history import Divergence, History
from gpushmem.check.lost_wakeups import Confused, Missed, NotResident
from gpushmem.check.memory_names import named, named_memory, of, of_array, of_block
from gpushmem.check.problem import Problem
from gpushmem.check.race_problem import race_problems
from gpushmem.check.races import Race
from gpushmem.check.uninitialized import Unwritten
from gpushmem.ops import CMP_EQ

__all__ = ["KINDS", "Problem", "counted", "problems", "text_of"]

KINDS = {
    "race": "nothing orders two accesses to the same memory",
    "ordering": "an operation is used before it is sure to be over",
    "scope": "an operation is atomic for fewer threads than use it",
    "missed": "a value that is waited for may be replaced before it is seen",
    "flag": "a wait for a flag may take other data that have the same flag",
    "resident": "a block waits for another, which may not run at the same time",
    "bounds": "memory is accessed that belongs to no array",
    "unwritten": "memory is read that nobody has written",
    "barrier": "threads of a block wait at different barriers",
}


def problems(
    history: History,
    found: list[Race],
    missed: list[Missed],
    confused: list[Confused],
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
        race_problems(history, found),
        (_Missed(history, one) for one in missed),
        (_Confused(history, one) for one in confused),
        (_NotResident(history, one) for one in not_resident),
        _divergent(history),
    )
    return [problem for kind in kinds for problem in sorted(kind, key=_place)]


def _place(problem: Problem) -> list[tuple[str, int]]:
    """The file and line of each access of a problem."""
    sites = (line_in(access.site).rpartition(":") for access, _ in problem.accesses)
    return [(file, int(line) if line.isdecimal() else 0) for file, _, line in sites]


def counted(text: str, count: int) -> str:
    """A problem in words that is there so many times."""
    first = text.partition("  (seen ")[0]
    return first + f"  (seen {count} times at these lines)\n" * (count > 1)


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
        return f"{_past(self.place - end)} {named(self.array, owner)}"

    def cure(self) -> str:
        if self.array is None:
            return "missing: a test of the index"
        return (
            f"missing: a test of the index: `{self.array['name'] or 'the array'}` has shape "
            f"{tuple(self.array['shape'])}"
        )


class _Beside(_OutOfBounds):
    """An access beside an array of device memory."""

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
        array = named_memory(self.history, self.access.pe, self.memory_of)
        if self.place < start:
            return f"{start - self.place} bytes before the start of {array}"
        return f"{_past(self.place - start - self.memory_of['bytes'])} {array}"

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


class _OfWait(Problem):
    """A wait, and a write that is not as the wait needs it, in words."""

    def __init__(self, history: History, found: Missed | Confused | NotResident) -> None:
        self.history, self.element, self.seen = history, found.element, found.seen
        self.write, self.wait = found.write, found.wait
        self.accesses = [(self.write, self.write.thread), (self.wait, self.wait.thread)]

    def memory(self) -> str:
        return of(self.history, self.wait, self.wait.start + self.element * self.wait.size)


class _Endless(_OfWait):
    """A wait that may never end, in words."""

    def what(self) -> str:
        name = self.wait.op.name if self.wait.op else "a loop of atomic operations"
        return f"{name} may never end: {self.why()}"

    def why(self) -> str:
        """Why it may not."""
        raise NotImplementedError


class _Confused(_OfWait):
    """A wait for a flag that other data have, in words."""

    def kind(self) -> str:
        return "flag"

    def what(self) -> str:
        return KINDS["flag"]

    def cure(self) -> str:
        call = self.wait.call
        flag = "" if call is None else f", not {call.value} again"
        return f"missing: a flag of its own for this write{flag}: a number that counts the calls"


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
            return of_block(self.history, self.access, self.place)
        return of_array(self.array, owner, self.place)

    def cure(self) -> str:
        if self.array is None:
            return "missing: a write before this: blocks start with unwritten shared memory"
        return "missing: a write before this, or zeros() instead of empty()"
