"""Rounds of hosts: barriers, and agreement on the call that PEs are in.

They are rounds of a team (`rounds`), so some PEs may arrive at a barrier from a kernel and others
from the host. If the call is not a barrier, a host writes its name to its box; all members compare,
and all raise together when PEs are in different calls.
"""

from __future__ import annotations

import ctypes
import math
import time
import zlib
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
from numba import types

from gpushmem.artifacts.argument_packing import address_of
from gpushmem.backends.cpu.sync.barrier import arrived, as_number, as_team, post, say
from gpushmem.backends.cpu.sync.world import CROWDED, LINE_OF, TEAM, World
from gpushmem.backends.operation_errors import ALIKE, different_calls
from gpushmem.diagnosis.pe_state import Waiting
from gpushmem.errors import CollectiveMismatch, WaitTimeout
from gpushmem.job.pe_ranges import compact
from gpushmem.native.c_function import c_function
from gpushmem.native.internal import internal
from gpushmem.native.memory import load_acquire, monotonic_ns, sched_yield, store_release, usleep
from gpushmem.ops import TEAM_WORLD
from gpushmem.ops.roles import REDUCTIONS
from gpushmem.waiting_threads import Parked

__all__ = [
    "BYTES",
    "DTYPE",
    "GIVEN_UP",
    "KINDS",
    "HostBarrier",
    "dtype_number",
    "elsewhere",
    "kind_name",
    "mismatch",
]

SPINS, YIELDS, SLEEPS, SLEEP_US = 200, 1000, 200, 50  # about 20 ms between two looks at signals
ASLEEP = SPINS + YIELDS
LATE_NS = 500_000  # a yield that takes longer has given the core to a program that computes
CROWDED_NS = 50_000_000  # for how long nothing yields after that
TEXT_BYTES = 128

# The calls of a team. A kind is an index of this tuple, 8 bits, a dtype, 16 bits, and a number of
# bytes. Its detail is the root of a broadcast, or the strides of alltoalls, 32 bits each.
KINDS = (
    "", "host", "barrier", "sync", "broadcast", "fcollect", "collect", "alltoall", "alltoalls",
    *(f"{what}({op})" for what in ("reduce", "reducescatter") for op in REDUCTIONS),
    # of what is not symmetric, see `host_collectives`:
    "all_gather", "gather", "scatter", "all_to_all",
    *(
        f"{what}({op})"
        for what in ("all_reduce", "reduce_to", "reduce_scatter") for op in REDUCTIONS
    ),
    "given up",  # replaces the call of a member that no longer waits
)  # fmt: skip
HOST, GIVEN_UP = KINDS.index("host"), KINDS.index("given up")
DTYPE, BYTES = 1 << 8, 1 << 24  # factors of the dtype and of the number of bytes in a kind
ROOTED = {"broadcast": "from", "scatter": "from", "gather": "to", "reduce_to": "to"}


DTYPES = (
    "", "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16",
    "__nv_bfloat16", "float32", "float64", "complex64", "complex128", "fp8_e4m3", "fp8_e5m2",
)  # fmt: skip
OTHER = 1 << 15  # from this number on: dtypes that have no name here, by a digest


def dtype_number(name: str) -> int:
    """The number of a dtype in a kind, the same on every PE."""
    return DTYPES.index(name) if name in DTYPES else OTHER | zlib.crc32(name.encode()) & OTHER - 1


def kind_name(kind: int, team: int, detail: int = 0, other: int = 0) -> str:
    """A member's call in words, with the details in which it may differ from a similar `other`."""
    what, dtype, nbytes = KINDS[kind & 0xFF], kind >> 8 & 0xFFFF, kind >> 24
    alike = kind & 0xFF == other & 0xFF
    text = what + ("_all" if team == TEAM_WORLD and what in ("barrier", "sync") else "")
    if nbytes:
        text += f" of {nbytes} bytes"
    if alike and dtype != other >> 8 & 0xFFFF:
        text += " of " + (DTYPES[dtype].strip("_") if dtype < OTHER else f"records {dtype:x}")
    if alike and what == "alltoalls":
        text += f" with strides {detail >> 32} and {detail & 0xFFFFFFFF}"
    rooted = ROOTED.get(what.partition("(")[0])
    return text + (f" {rooted} {detail}" if rooted else "")


def mismatch(
    pe: int, theirs: int, ours: int, team: int, their_detail: int = 0, our_detail: int = 0, *_: int
) -> str:
    """The error when another member, PE `pe` of the job, is in another call."""
    return (
        f"PEs met in different collective calls: PE {pe}: "
        f"{kind_name(theirs, team, their_detail, ours)}; this PE: "
        f"{kind_name(ours, team, our_detail, theirs)}. {ALIKE}"
    )


def elsewhere(pe: int, theirs: int, ours: int, which: int, *_: int) -> str:
    """The error when another member's array is at another offset in the heap."""
    return (
        f"PE {pe} gives {('dst', 'src')[which]} at offset {theirs:#x} of the symmetric heap, this "
        f"PE at {ours:#x}: every PE must give the same symmetric array"
    )


def post_all(team: int, number: int, kind: int) -> None:
    """Post this PE's arrival in a round to all other members of the team."""
    record = as_team(team)
    say(team, kind, 0, 0, 0)
    for rank in range(record.n_pes):
        if rank != record.my_pe:
            post(team, number, rank)


@internal
def rest(turn: int, crowded: int) -> int:
    """Let others run, after so many turns of a wait; returns the number of the next turn.

    A yield to a program that computes returns when that program has used up its time slice,
    milliseconds later. The system prefers a thread that wakes up, so after a long yield this sleeps
    instead, until the time in the word at `crowded`.
    """
    if turn >= ASLEEP:
        usleep(SLEEP_US)
    elif turn >= SPINS:
        began = monotonic_ns()
        if began < load_acquire(crowded):
            return ASLEEP
        sched_yield()
        if monotonic_ns() - began > LATE_NS:
            store_release(crowded, began + CROWDED_NS)
    return turn + 1


def passed(team: int, number: int, first: int) -> bool:
    """Wait a while for all members to arrive in a round; returns whether they have.

    `first` is 0, or ASLEEP after earlier waits: yielding may take seconds when other processes need
    the core.
    """
    record = as_team(team)
    rank = 0
    turn = first
    while turn < ASLEEP + SLEEPS:
        while rank == record.my_pe or (rank < record.n_pes and arrived(team, number, rank)):
            rank += 1
        if rank == record.n_pes:
            return True
        turn = rest(turn, team + CROWDED)
    return False


def tell(team: int, number: int, rank: int) -> None:
    """Tell one other member that this one is in a round."""
    say(team, HOST, 0, 0, 0)
    post(team, number, rank)


def came(team: int, numbers: int, first: int) -> bool:
    """As `passed`, each member having a round of its own; `numbers` is the address of them."""
    rank, n = 0, as_team(team).n_pes
    turn = first
    while turn < ASLEEP + SLEEPS:
        while rank < n and arrived(team, as_number(numbers + 8 * rank).pe, rank):
            rank += 1
        if rank == n:
            return True
        turn = rest(turn, team + CROWDED)
    return False


word, WORDS = types.intp, [ctypes.c_int64] * 3


@cache
def native() -> dict[str, Any]:
    """What tells others and waits for them, for Python."""
    return {
        "post_all": c_function(types.void(word, word, word), post_all).callable(None, *WORDS),
        "passed": c_function(types.boolean(word, word, word), passed).callable(
            ctypes.c_bool, *WORDS
        ),
        "tell": c_function(types.void(word, word, word), tell).callable(None, *WORDS),
        "came": c_function(types.boolean(word, word, word), came).callable(ctypes.c_bool, *WORDS),
    }


class HostBarrier:
    """The calling PE's side of the job's meetings."""

    def __init__(self, world: World, idle: Callable[[], object] | None = None) -> None:
        self._world = world
        self._idle = idle  # called now and then while the host waits
        self._post_all, self._passed = native()["post_all"], native()["passed"]
        self.waits: dict[Parked, Waiting] = {}  # of this PE's threads

    def join(self, kind: str) -> None:
        """Wait until all PEs are in their `barrier_all` or `sync_all`, on hosts or in kernels."""
        self._round(TEAM_WORLD, f"{kind}_all", KINDS.index(kind))
        self._compare(TEAM_WORLD, f"{kind}_all")

    def meet(self, what: str, nbytes: int = -1) -> None:
        """Wait until all PEs are in this call; raises `CollectiveMismatch` if one is in another.

        `what` names the call, at most 128 bytes of it; PEs must also agree on `nbytes`. All PEs
        that came from the host raise together.
        """
        call = what + (f" of {nbytes} bytes" if nbytes >= 0 else "")
        self._say(TEAM_WORLD, what, call.encode())
        self._compare(TEAM_WORLD, call)

    def largest(self, team: int, what: str, number: int) -> int:
        """The largest of the members' numbers; they must be in the same call."""
        self._say(team, what, what.encode())
        self._compare(team, what)
        self._say(team, what, str(number).encode())
        return max(map(int, self._said(team)))

    def settle(self, what: str) -> None:
        """Compare this PE's last call, if it has not waited for the others, with theirs."""
        teams = self._world.teams
        for team in np.flatnonzero((teams["n_pes"] > 0) & (teams["unchecked"] != 0)).tolist():
            self._wait(what, team, int(teams["round"][team]))
            self._compare_unchecked(team)

    def give_up(self, team: int, number: int) -> None:
        """Tell members that reach this round later that this PE no longer waits for them.

        Only the kind of its call changes: a member that reads the line meanwhile sees it, or the
        call as it was.
        """
        record = self._world.teams[team]
        for pe in self.pes(team):
            if pe != self._world.job.my_pe:
                self.lines(team, number, pe)["said"][int(record["my_pe"]), 0] = GIVEN_UP

    # --- one round

    def _say(self, team: int, what: str, data: bytes) -> None:
        """Send `data` to all members."""
        self._round(team, what, HOST, data)

    def _round(self, team: int, what: str, kind: int, data: bytes = b"") -> None:
        record = self._world.teams[team]
        number = int(record["round"])
        self._wait(what, team, number)  # now all have read what was sent in the round before
        self._compare_unchecked(team)
        number += 1
        record["round"] = number
        for pe in self.pes(team):
            self.write(team, number, pe, data)
        self._post_all(address_of(self._world.teams[team : team + 1]), number, kind)
        self._wait(what, team, number)

    def _wait(self, what: str, team: int, number: int) -> None:
        record = address_of(self._world.teams[team : team + 1])
        missing = partial(self.missing, team, number)
        self.wait(what, partial(self._passed, record, number), missing, team)

    def missing(self, team: int, number: int) -> list[int]:
        """The members that have not come to a round."""
        lines = zip(self.pes(team), self.lines(team, number)["round"], strict=True)
        return [pe for pe, last in lines if last < number and pe != self._world.job.my_pe]

    def wait(
        self,
        what: str,
        passed: Callable[[int], bool],
        missing: Callable[[], list[int]],
        team: int = -1,
        seconds: float = math.inf,
    ) -> None:
        """Wait until `passed(first)`, see there, for those of a team that are `missing`.

        `passed` is no Python function: the watch takes that for a thread that moves. Raises
        `WaitTimeout` after so many `seconds`.
        """
        if passed(0):
            return
        waiting = self._waiting(what, missing, team)
        try:
            with waiting.parked:
                self.waits[waiting.parked] = waiting
                # Back in Python now and then, so that signals are handled, and to see which PEs
                # ended. One that ended after arriving is no reason to complain.
                while not passed(ASLEEP if self._idle is None else ASLEEP + SLEEPS - 2):
                    waiting.parked.turns += 1
                    if self._idle is not None:
                        self._idle()
                    gone, error = waiting.gone(), self._world.board.error()
                    if error is not None:
                        raise error
                    if gone and not passed(ASLEEP):
                        raise CollectiveMismatch(
                            f"{what} waits for {compact(gone)}, which ended without making this "
                            f"call. {ALIKE}"
                        )
                    if time.monotonic() - waiting.parked.since > seconds:
                        raise WaitTimeout(
                            f"{what} has waited {seconds:.3g} s for {compact(missing())}, its limit"
                        )
        finally:
            self.waits.pop(waiting.parked, None)

    def _waiting(self, what: str, missing: Callable[[], list[int]], team: int) -> Waiting:
        ended = self._world.board.pes["ended"]

        def gone() -> list[int]:
            return [pe for pe in missing() if ended[pe]]

        parked = Parked(what, lambda: not missing() or bool(gone()))
        return Waiting(parked, team, self.pes(team) if team >= 0 else [], missing, gone)

    # --- memory of a round

    def pes(self, team: int) -> list[int]:
        """The members of a team, as PEs of the job."""
        pes: list[int] = self._world.members[team, : self._world.teams["n_pes"][team]].tolist()
        return pes

    def team_at(self, address: int) -> int:
        """The team in whose lines an address is."""
        lines, boxes = self._world.teams["lines"], self._world.teams["boxes"]
        return int(((lines <= address) & (address < boxes)).argmax())

    def called_less(self, address: int, calls: int) -> tuple[int, list[int]]:
        """The team whose record is at an address, and its PEs that have begun fewer `calls`."""
        team = (address - address_of(self._world.teams)) // TEAM.itemsize
        records = {pe: self._world.record(team, pe) for pe in self.pes(team)}
        return team, [pe for pe, record in records.items() if record["calls"] < calls]

    def lines(self, team: int, number: int, pe: int | None = None) -> np.ndarray[Any, Any]:
        """The lines of a round in which all members write to `pe`, by default this one."""
        record = self._world.teams[team]
        nbytes = int(record["n_pes"]) * LINE_OF.itemsize
        there = int(record["lines"]) + (0 if pe is None else self._away(team, pe))
        return self._world.memory(there + (number & 1) * nbytes, nbytes).view(LINE_OF)

    def _away(self, team: int, pe: int) -> int:
        """Bytes from an address of this PE to the same one on `pe`."""
        record = self._world.teams[team]
        return (pe - int(record["world_pe"])) * int(record["span"])

    def boxes(self, team: int, number: int, pe: int) -> np.ndarray[Any, Any]:
        """The boxes of all members on `pe`, as texts."""
        record = self._world.teams[team]
        n, box = int(record["n_pes"]), int(record["box_bytes"])
        there = int(record["boxes"]) + self._away(team, pe)
        boxes = self._world.memory(there + (number & 1) * n * box, n * box).reshape(n, box)
        return boxes[:, : min(TEXT_BYTES, box)].view(f"S{min(TEXT_BYTES, box)}")[:, 0]

    def write(self, team: int, number: int, pe: int, data: bytes) -> None:
        """Fill this PE's box on `pe`."""
        self.boxes(team, number, pe)[self._world.teams["my_pe"][team]] = data

    def _said(self, team: int) -> list[str]:
        number = int(self._world.teams["round"][team])
        return [
            text.decode(errors="replace")
            for text in self.boxes(team, number, self._world.job.my_pe)
        ]

    def _compare_unchecked(self, team: int) -> None:
        """Raise if this PE left the last round without waiting, and the calls in it differ."""
        record, pes = self._world.teams[team], self.pes(team)
        if not record["unchecked"]:
            return
        self._world.teams["unchecked"][team] = 0
        number, ours = int(record["round"]), record["said"].tolist()
        for rank, line in enumerate(self.lines(team, number)):
            theirs = line["said"].tolist()
            if rank == record["my_pe"] or theirs == ours:
                continue
            if theirs[:2] != ours[:2]:
                calls = (theirs[0], ours[0], team, theirs[1], ours[1])
                raise CollectiveMismatch(mismatch(pes[rank], *calls))
            which = 2 if theirs[2] != ours[2] else 3
            raise CollectiveMismatch(elsewhere(pes[rank], theirs[which], ours[which], which - 2))

    def _compare(self, team: int, ours: str) -> None:
        """Raise, on every member that came from the host, unless all are in the same call."""
        number = int(self._world.teams["round"][team])
        said = self._said(team)
        me = int(self._world.teams["my_pe"][team])
        for rank, (kind, detail) in enumerate(self.lines(team, number)["said"][:, :2].tolist()):
            if rank != me and kind != HOST:
                said[rank] = kind_name(kind, team, detail)
        said[me] = ours
        if any(text != ours for text in said):
            raise different_calls(dict(zip(self.pes(team), said, strict=True)))
