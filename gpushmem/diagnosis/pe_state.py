"""What this PE tells of itself when it is asked: who waits, for what, and what it sees.

An account is plain data (`job.board` carries it as JSON); `report` makes a text of the accounts
of all PEs. Making one stops nothing: of a PE that moves on meanwhile it may show a moment ago.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, Protocol

import numpy as np

from gpushmem.diagnosis.arrays import Arrays
from gpushmem.diagnosis.host_polling import Asking
from gpushmem.diagnosis.journal import Journal
from gpushmem.job.job import Job
from gpushmem.ops.constants import COMPARISONS
from gpushmem.ops.row import ON_THE_HOST
from gpushmem.simt.layout import GROUP
from gpushmem.simt.waits import LANE_MEETING, MEETING, POLLING, Wait, running, unstarted, waits
from gpushmem.source_lines import line_at, line_of, user_frame
from gpushmem.waiting_threads import Parked, acts_for, hosts, parked

__all__ = [
    "BYTES", "CALL", "COUNT", "MEMBER", "MISSING", "MOST_ARRIVALS", "PHASE", "Accountant",
    "Waiting",
]  # fmt: skip

LAUNCHER = str(Path(__file__).parents[1] / "start")
MOST = 50  # waits in an account; the rest is counted
CALL = -17  # it waits in call `wanted` of the team whose record is at `address`
PHASE = -18  # it waits for a phase of the mbarrier at `address`: see COUNT
MEMBER = -16  # in a waiting thread's record: it waits for the PE whose number is `wanted`
# The word of an mbarrier: bit 0 is the parity of the phase that goes on; from these bits on it has
# the arrivals of a phase, those that this one lacks, and the bytes, a signed number.
COUNT, MISSING, BYTES = 1, 21, 41
MOST_ARRIVALS = (1 << MISSING - COUNT) - 1  # and bytes: PTX ISA, "mbarrier"


class Waiting(NamedTuple):
    """What the host waits for; the watch's thread reads it."""

    parked: Parked
    team: int  # -1: they are not in a team yet
    pes: list[int]  # its members
    missing: Callable[[], list[int]]  # those that have not come
    gone: Callable[[], list[int]]  # ... and will not, since they have ended


class HostBarrier(Protocol):
    """The calling PE's side of the meetings with other PEs."""

    waits: dict[Parked, Waiting]  # of this PE's threads

    def pes(self, team: int) -> list[int]:
        """The members of a team, as PEs of the job."""

    def team_at(self, address: int) -> int:
        """The team in whose lines an address is."""

    def called_less(self, address: int, calls: int) -> tuple[int, list[int]]:
        """The team whose record is at an address, and its PEs that have begun fewer `calls`."""


class Accountant:
    """Makes the accounts of one PE."""

    def __init__(
        self, job: Job, barrier: HostBarrier, journal: Journal, arrays: Arrays, asking: Asking
    ) -> None:
        self._job, self._barrier, self._journal = job, barrier, journal
        self._arrays, self._asking = arrays, asking

    def account(self, stacks: bool = False, blocked: Parked | None = None) -> dict[str, Any]:
        """All of it; see `report` for what is in it. `blocked`: what the main thread waits in."""
        found = waits()
        host = [*hosts(), *self._asking.waits().items()]
        if blocked is not None:
            host.append((threading.main_thread().ident or 0, blocked))
        alike = _alike(found)
        busy = sorted({launch.name for launch in running()} - {wait.kernel for wait in found})
        return {
            "pe": self._job.my_pe,
            "host": [self._host(*each) for each in host],
            "busy": busy,
            "unstarted": unstarted(),
            "waits": [self._wait(group) for group in alike[:MOST]],
            "more": max(0, len(alike) - MOST),
            "journal": self._journal.account(),
            "stacks": _stacks() if stacks else [],
        }

    # --- the host

    def _host(self, ident: int, wait: Parked) -> dict[str, Any]:
        frame, called = sys._current_frames().get(ident), acts_for.get(ident)
        met = self._barrier.waits.get(wait)
        line = line_at(*called) if called else line_of(user_frame(frame)) if frame else "?"
        return {
            "what": wait.what,
            "line": line,
            "seconds": time.monotonic() - wait.since,
            "for": [] if met is None else met.missing(),
            "team": None if met is None else self._team(met.team, met.pes),
        }

    def _team(self, index: int, pes: list[int]) -> dict[str, Any] | None:
        """A team as reports show it; None for that of all PEs, and for one that is being made."""
        if index < 0 or len(pes) == self._job.n_pes:
            return None
        return {"number": index, "pes": pes}

    # --- kernels

    def _wait(self, group: list[Wait]) -> dict[str, Any]:
        wait = group[0]
        return {
            "kernel": wait.kernel.removesuffix(ON_THE_HOST),
            "host": wait.kernel.endswith(ON_THE_HOST),
            "block": wait.block, "thread": wait.thread, "more": len(group) - 1,
            "site": wait.site, "what": wait.what, "seconds": wait.seconds,
        } | self._condition(wait)  # fmt: skip

    def _condition(self, wait: Wait) -> dict[str, Any]:
        """What ends the wait, by its kind."""
        if wait.compare == MEETING:
            group = _peek(wait.address, GROUP)
            return {"arrived": max(int(group["arrived"]), 0), "wanted": int(group["alive"])}
        if wait.compare == PHASE:
            return _of_mbarrier(int(_peek(wait.address, np.dtype([("v", "i8")]))["v"]))
        if wait.compare == LANE_MEETING:
            return {"lanes": wait.wanted}
        if wait.compare == MEMBER:
            team = self._barrier.team_at(wait.address)
            return {"for": wait.wanted, "team": self._team(team, self._barrier.pes(team))}
        if wait.compare == CALL:
            team, behind = self._barrier.called_less(wait.address, wait.wanted)
            about = {"team": self._team(team, self._barrier.pes(team))}
            return about | {"for": behind[0]} if behind else about
        if wait.address == 0:
            return {}
        condition: dict[str, Any] = {"seen": _number(wait.address, wait.width)}
        if wait.compare != POLLING:
            wanted = wait.wanted if wait.width < 0 else wait.wanted % 2**64
            condition |= {"sign": COMPARISONS.get(wait.compare, "?"), "wanted": wanted}
        return condition | {"object": self._object(wait.address, abs(wait.width))}

    def _object(self, address: int, width: int) -> dict[str, Any]:
        """What symmetric array an address is in."""
        offset = address - self._arrays.heap
        found = self._arrays.symmetric_at(address)
        if found is not None:
            return {
                "offset": offset, "index": found.element, "dtype": str(found.dtype),
                "made": found.where, "name": found.name,
            }  # fmt: skip
        return {"offset": offset, "index": 0, "dtype": f"{8 * width} bits", "made": None}


def _alike(found: list[Wait]) -> list[list[Wait]]:
    """Threads of a block that wait at one line for one thing differ only by their numbers."""
    groups: dict[tuple[Any, ...], list[Wait]] = {}
    for wait in found:
        place = 0 if wait.compare in (MEETING, LANE_MEETING) else wait.address
        key = (wait.kernel, wait.block, wait.site, wait.what, place, wait.compare, wait.wanted)
        groups.setdefault(key, []).append(wait)
    return list(groups.values())


def _peek(address: int, dtype: np.dtype[Any]) -> Any:
    """What is in memory of a block, which may be gone by now; zeros, then."""
    data = bytearray(dtype.itemsize)
    with contextlib.suppress(OSError), open("/proc/self/mem", "rb", buffering=0) as memory:
        memory.seek(address)
        memory.readinto(data)
    return np.frombuffer(data, dtype)[0]


def _of_mbarrier(word: int) -> dict[str, int]:
    """How many have arrived, of how many, and the bytes that are still to be copied."""
    count, missing = (word >> first & MOST_ARRIVALS for first in (COUNT, MISSING))
    return {"arrivals": count - missing, "wanted": count, "bytes": word >> BYTES}


def _number(address: int, width: int) -> int:
    return int(_at(address, np.dtype(f"{'i' if width < 0 else 'u'}{abs(width)}")))


def _at(address: int, dtype: np.dtype[Any]) -> Any:
    buffer = (ctypes.c_char * dtype.itemsize).from_address(address)
    return np.frombuffer(memoryview(buffer), dtype)[0].copy()


def _stacks() -> list[str]:
    """Python's stacks, one text for each of the user's threads."""
    frames = sys._current_frames()
    return [
        f"{thread.name}:\n" + "".join(_stack(frames[thread.ident]).format())
        for thread in threading.enumerate()
        if thread.ident in frames and not thread.name.startswith("gpushmem") and not _works(thread)
    ]


def _stack(frame: FrameType) -> traceback.StackSummary:
    """The user's frames: neither the library's, nor those that led to the script."""
    stack = traceback.extract_stack(user_frame(frame))
    ours = [k for k, entry in enumerate(stack) if entry.filename.startswith((LAUNCHER, "<frozen"))]
    return traceback.StackSummary.from_list(stack[ours[-1] + 1 :] if ours else stack)


def _works(thread: threading.Thread) -> bool:
    """Whether a thread is a stream's."""
    return getattr(parked.get(thread.ident or 0), "worker", False)
