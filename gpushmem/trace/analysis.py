"""What a trace tells: who released which wait, and what each PE's time was spent on.

A wait is released by the last write to what it waits for, of any PE, that had begun when it was
over; a meeting (a barrier, a collective, a call that all PEs make) by the member that came last.

A PE's time is divided as follows. Its *actors* are the blocks of its kernels that wait, its other
kernels, and while no kernel runs its host. At each moment the PE is *waiting* if all its actors
wait; else *moving* if an operation moves data; else *computing*; *idle* after its last event. While
no kernel runs, and its host compiles one or waits for a PE that does, it is *compiling*. A block
waits while one of its threads does; a host that waits for its own kernels is no actor.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from gpushmem.ops import OPS
from gpushmem.ops.row import READS
from gpushmem.trace.reading import OPEN, Trace
from gpushmem.trace.ring import BLOCK, CALL, COMPILE, FIRST_OP, KERNEL, MEET, NO_PE, RANGE

__all__ = [
    "CATEGORIES",
    "COMPILING",
    "COMPUTING",
    "IDLE",
    "MEETS",
    "MOVING",
    "STATES",
    "WAITING",
    "WAITS",
    "WRITES",
    "Analysis",
    "Step",
    "Wait",
]

CATEGORIES = (
    "host", "kernel", "block", "wait", "meet", "move", "order", "compute", "compile", "range",
)  # fmt: skip
STATES = COMPUTING, MOVING, WAITING, COMPILING, IDLE = range(5)
WORD = 8
rows = list(OPS.values())
WAITS = np.array([FIRST_OP + k for k, op in enumerate(rows) if op.facts.waits_for])
MEETS = np.array([MEET, *(FIRST_OP + k for k, op in enumerate(rows) if op.facts.meets)])


def _writes(op: Any) -> bool:
    """Whether it writes memory of the PE that it names."""
    return "pe" in op.params and any(
        effect.how != READS and op.arrays[effect.array].symmetric for effect in op.facts.effects
    )


WRITES = np.array([FIRST_OP + k for k, op in enumerate(rows) if _writes(op)])
GETS = np.array([FIRST_OP + k for k, op in enumerate(rows) if op.plain in ("get", "iget", "g")])
ORDERS = np.array([FIRST_OP + k for k, op in enumerate(rows) if op.facts.orders and not op.waits])
MOVES = np.array([FIRST_OP + k for k, op in enumerate(rows) if op.facts.effects and not op.waits])


@dataclass
class Wait:
    """Time that an event waited for another: both by their index, times in nanoseconds."""

    event: int
    by: int  # the event that released it; -1: unknown
    began: int
    ended: int

    @property
    def ns(self) -> int:
        """How long."""
        return self.ended - self.began


@dataclass
class Step:
    """A part of the critical path: a PE from one time to another."""

    pe: int
    began: int
    ended: int
    wait: Wait | None  # that ends it, on the PE of the next step


class Analysis:
    """Of a trace; each part is made when it is first asked for."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.events = events = trace.events
        self.ended = np.where(events["ended"] == OPEN, trace.end, events["ended"])

    @cached_property
    def categories(self) -> np.ndarray[Any, Any]:
        """The category of each event, by its number in CATEGORIES."""
        kind, moved = self.events["kind"], self.events["nbytes"] > 0
        found = np.zeros(len(self.events), np.uint8)
        which = {
            "kernel": kind == KERNEL, "block": kind == BLOCK, "compile": kind == COMPILE,
            "range": kind == RANGE,
            "wait": np.isin(kind, WAITS), "meet": np.isin(kind, MEETS),
            "move": np.isin(kind, MOVES) & moved, "order": np.isin(kind, ORDERS),
            "compute": kind >= FIRST_OP,
        }  # fmt: skip
        for name, those in which.items():
            found[those & (found == 0)] = CATEGORIES.index(name)
        return found

    # --- who released whom

    @cached_property
    def released(self) -> np.ndarray[Any, Any]:
        """Of each event the index of the one that released it, if it is a wait; else -1."""
        events, found = self.events, np.full(len(self.events), -1)
        waits = np.flatnonzero(np.isin(events["kind"], WAITS) & (events["at"] >= 0))
        writes = np.flatnonzero(
            np.isin(events["kind"], WRITES) & (events["pe"] != NO_PE) & (events["at"] >= 0)
        )
        for pe in np.unique(events["of"][waits]).tolist():
            mine = waits[events["of"][waits] == pe]
            there = writes[events["pe"][writes] == pe]
            if len(there):
                found[mine] = self._last_writes(mine, there)
        return found

    def _last_writes(self, waits: Any, writes: Any) -> Any:
        """For each wait of one PE the last write to its memory before it was over; -1: none."""
        began, at, nbytes = (self.events[name] for name in ("began", "at", "nbytes"))
        small = writes[nbytes[writes] <= WORD]
        small = small[np.argsort(at[small], kind="stable")]
        places = at[small]
        large = writes[nbytes[writes] > WORD]
        starts, ends = at[large], at[large] + nbytes[large]
        found = np.full(len(waits), -1)
        for which in _alike(at[waits], nbytes[waits]):
            first = int(at[waits[which[0]]])
            over = first + max(int(nbytes[waits[which[0]]]), 1)
            low, high = np.searchsorted(places, (first, over))
            hits = np.append(small[low:high], large[(starts < over) & (ends > first)])
            hits = hits[np.argsort(began[hits], kind="stable")]
            last = np.searchsorted(began[hits], self.ended[waits[which]], "right") - 1
            found[which] = np.append(hits, -1)[last]  # -1, too, for the one behind the last
        return found

    @cached_property
    def meetings(self) -> list[np.ndarray[Any, Any]]:
        """The meetings of which all members' events are there: their indices."""
        events = self.events
        groups: dict[Any, list[int]] = {}
        lossy = bool(self.trace.lost)
        indices = np.flatnonzero(np.isin(events["kind"], MEETS))
        for pe in range(self.trace.n_pes):
            by_team: dict[Any, list[int]] = {}
            for index in indices[events["of"][indices] == pe].tolist():
                host = events["kind"][index] == MEET
                team = "host" if host else self._members(pe, index)
                by_team.setdefault(team, []).append(index)
            for team, calls in by_team.items():
                for k, index in enumerate(calls):
                    # Older events may be lost: then count from the last one.
                    number = k - len(calls) if lossy else k
                    groups.setdefault((team, number), []).append(index)
        whole = []
        for (team, _), members in groups.items():
            size = self.trace.n_pes if team == "host" else len(team)
            if len(members) == size and size > 1:
                whole.append(np.array(members))
        return whole

    def _members(self, pe: int, index: int) -> tuple[int, ...]:
        """The members of the team that meets in an event."""
        everyone = tuple(range(self.trace.n_pes))
        return self._teams.get((pe, int(self.events["value"][index])), everyone)

    @cached_property
    def _teams(self) -> dict[tuple[int, int], tuple[int, ...]]:
        """The members of a PE's teams; of one whose number was used again, the last."""
        return {
            (pe, fact["team"]): tuple(fact["pes"])
            for pe, facts in self.trace.facts.items()
            for fact in facts
            if "team" in fact
        }

    @cached_property
    def waits(self) -> list[Wait]:
        """All time that somebody waited for somebody else."""
        events, found = self.events, []
        for index in np.flatnonzero(np.isin(events["kind"], WAITS)).tolist():
            by, began = int(self.released[index]), int(events["began"][index])
            if by < 0 or self.ended[by] > began:  # else it found what it waits for
                found.append(Wait(index, by, began, int(self.ended[index])))
        for members in self.meetings:
            last = int(members[np.argmax(events["began"][members])])
            came = int(events["began"][last])
            for index in members.tolist():
                if index != last:
                    ended = min(int(self.ended[index]), max(came, int(events["began"][index])))
                    found.append(Wait(index, last, int(events["began"][index]), ended))
        return found

    # --- what the time was spent on

    @cached_property
    def time(self) -> np.ndarray[Any, Any]:
        """Nanoseconds of each PE in each of STATES; and, in the last column, of overlap.

        Overlap is the part of moving in which another actor of the PE computes.
        """
        found = []
        for edges, state, overlap in self.states:
            lengths = np.diff(edges)
            parts = [state == which for which in STATES]
            found.append([int(lengths[part].sum()) for part in (*parts, overlap)])
        return np.array(found)

    @cached_property
    def states(self) -> list[tuple[Any, Any, Any]]:
        """Of each PE moments, its state from each to the next, and whether there is overlap."""
        return [self._states_of(pe) for pe in range(self.trace.n_pes)]

    def spent(self, indices: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Nanoseconds that the PEs of some events were in each of STATES while those lasted."""
        found = np.zeros((len(indices), len(STATES)), np.int64)
        began, of = self.events["began"][indices], self.events["of"][indices]
        for pe in np.unique(of).tolist():
            mine, (edges, state, _) = of == pe, self.states[pe]
            for which in STATES:
                until = np.append(0, np.cumsum(np.diff(edges) * (state == which)))
                first, last = (
                    np.interp(at[mine], edges, until) for at in (began, self.ended[indices])
                )
                found[mine, which] = np.rint(last - first)
        return found

    def _states_of(self, pe: int) -> tuple[Any, Any, Any]:
        events = self.events
        mine = np.flatnonzero((events["of"] == pe) & (events["kind"] != RANGE))
        if not len(mine):
            return np.array([0, self.trace.end]), np.array([IDLE]), np.array([False])
        kind, launch, began = events["kind"][mine], events["launch"][mine], events["began"][mine]
        ended, last = self.ended[mine], int(self.ended[mine].max())
        in_kernels, on_host = launch != 0, launch == 0
        blocks, kernels = kind == BLOCK, kind == KERNEL
        # Kernels that wait are there with their blocks.
        with_blocks = np.unique(launch[blocks])
        loops = kernels & ~np.isin(events["number"][mine], with_blocks)
        actor = (launch.astype(np.int64) << 32) + events["block"][mine]
        waiting = np.isin(kind, [*WAITS, *MEETS])
        moving = np.isin(kind, MOVES) & (events["nbytes"][mine] > 0)
        host_waits = on_host & (waiting | (kind == CALL))
        calls = {
            "actors": blocks | loops,
            "waits": in_kernels & waiting,
            "moves": in_kernels & moving,
            "host_waits": host_waits,
            "host_moves": on_host & moving,
            "compiles": kind == COMPILE,
        }
        spans = {
            name: _union(actor[chosen] if name in ("waits", "moves") else None,
                         began[chosen], ended[chosen])
            for name, chosen in calls.items()
        }  # fmt: skip
        edges = np.unique(
            np.concatenate([[int(began.min()), last], *(s.ravel() for s in spans.values())])
        )
        inner = (edges[:-1] + edges[1:]) / 2
        count = {name: _covering(span, inner) for name, span in spans.items()}
        kernel = count["actors"] > 0
        active = count["actors"] - count["waits"]
        state = np.where(
            kernel,
            np.where(active <= 0, WAITING, np.where(count["moves"] > 0, MOVING, COMPUTING)),
            np.select(
                [count["compiles"] > 0, count["host_waits"] > 0, count["host_moves"] > 0],
                [COMPILING, WAITING, MOVING],
                COMPUTING,
            ),
        )
        overlap = (state == MOVING) & kernel & (active > count["moves"])
        # Before the first event and after the last.
        edges = np.concatenate([[0], edges, [self.trace.end]])
        state, overlap = np.pad(state, 1, constant_values=IDLE), np.pad(overlap, 1)
        return edges, state, overlap

    # --- who sent what to whom

    @cached_property
    def sent(self) -> np.ndarray[Any, Any]:
        """Bytes from each PE (row) to each (column), by puts and gets alike."""
        events, n = self.events, self.trace.n_pes
        matrix = np.zeros((n, n), np.int64)
        moved = np.isin(events["kind"], MOVES) & (events["pe"] >= 0) & (events["pe"] < n)
        gets = moved & np.isin(events["kind"], GETS)
        puts = moved & ~gets
        np.add.at(matrix, (events["of"][puts], events["pe"][puts]), events["nbytes"][puts])
        np.add.at(matrix, (events["pe"][gets], events["of"][gets]), events["nbytes"][gets])
        return matrix

    # --- the critical path

    @cached_property
    def critical_path(self) -> list[Step]:
        """From the end of the job back to its beginning: who everybody waited for, in order."""
        events = self.events
        by_pe: dict[int, list[Wait]] = {}
        for wait in self.waits:
            if wait.by >= 0 and int(events["of"][wait.by]) != int(events["of"][wait.event]):
                by_pe.setdefault(int(events["of"][wait.event]), []).append(wait)
        for waits in by_pe.values():
            waits.sort(key=lambda wait: wait.ended)
        if not len(events):
            return []
        pe, now = int(events["of"][int(np.argmax(self.ended))]), self.trace.end
        steps: list[Step] = []
        ends_it: Wait | None = None
        while True:
            before = by_pe.get(pe, [])
            while before and (before[-1].ended > now or not before[-1].ns):
                before.pop()  # `now` only becomes earlier
            if not before or len(steps) > len(events):
                steps.append(Step(pe, 0, now, ends_it))
                return steps[::-1]
            turn = before.pop()
            steps.append(Step(pe, turn.ended, now, ends_it))
            left = int(self.ended[turn.by]) if events["kind"][turn.by] not in MEETS else turn.ended
            pe, now, ends_it = int(events["of"][turn.by]), min(left, turn.ended), turn


def _alike(*keys: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
    """The indices of those for which all keys are the same, by group, each in order."""
    order = np.lexsort(keys)
    new = np.any([np.diff(key[order]) != 0 for key in keys], 0)
    return np.split(order, np.flatnonzero(new) + 1)


def _union(
    actors: np.ndarray[Any, Any] | None, began: np.ndarray[Any, Any], ended: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    """Spans as rows (began, ended); those of one actor that overlap are one."""
    if actors is None or not len(began):
        return np.stack([began, ended], 1)
    order = np.lexsort((began, actors))
    actors, began, ended = actors[order], began[order], ended[order]
    found: list[list[int]] = []
    last = None
    for actor, start, end in zip(actors.tolist(), began.tolist(), ended.tolist(), strict=True):
        if actor == last and start <= found[-1][1]:
            found[-1][1] = max(found[-1][1], end)
        else:
            found.append([start, end])
        last = actor
    return np.array(found)


def _covering(spans: np.ndarray[Any, Any], at: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """How many of the spans there are at each of some moments."""
    starts, ends = np.sort(spans[:, 0]), np.sort(spans[:, 1])
    return np.searchsorted(starts, at, "right") - np.searchsorted(ends, at, "right")
