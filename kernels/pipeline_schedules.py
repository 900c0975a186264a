"""Schedules of pipelines, as tables: which stage does what, and in which order.

A model's layers are cut into stages, one on each PE. A batch is cut into microbatches, which go
through the stages one behind the other: forward from the first to the last, then, as gradients, all
the way back. A stage does one action after the other, and waits where what it needs has not come:

    F   forward of a microbatch                 B   its backward: I, then W
    I   the gradient of its input               W   the gradients of the stage's weights

    gpipe         all forwards, then all backwards
    1f1b          so many forwards until the first gradient can be there, then B and F by turns
    interleaved   as 1f1b, on PEs that have several stages, *chunks*: chunk c of PE s of p is stage
                  c p + s of the model, so a microbatch goes around the ring of PEs v times
    zero_bubble   as 1f1b, and only I is done at once: W is put off to where a stage would wait

A stage does nothing for a share of the time (the *bubble*), and keeps the activations of so many
microbatches that have been forward, and not yet backward. With p PEs, m >= 2 p microbatches, v
chunks, whose actions take 1 / v of the time; B takes twice as long as F, I and W as long:

                  bubble                     alive, at most, on PE s = 0, 1, ...
    gpipe         (p - 1) / (m + p - 1)      m
    1f1b          (p - 1) / (m + p - 1)      p - s
    interleaved   (p - 1) / (v m + p - 1)    2 (p - s) - 1 + (v - 1) p, of a chunk each
    zero_bubble   (p - 1) / (3 m + p - 1)    p

GPipe: Huang et al., NeurIPS 2019. 1F1B: Narayanan et al., "Memory-Efficient Pipeline-Parallel DNN
Training", ICML 2021. Interleaved: Narayanan et al., "Efficient Large-Scale Language Model Training
on GPU Clusters Using Megatron-LM", SC 2021. The last one is ZB-H1 of Qi, Wan, Huang and Lin, "Zero
Bubble Pipeline Parallelism", ICLR 2024.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import cached_property
from math import inf
from typing import Any

import numpy as np

import gpushmem as shmem
from gpushmem.checks import integer, taking

__all__ = [
    "BACKWARD", "BACKWARDS", "ENDS", "FORWARD", "INPUT", "KINDS", "WEIGHTS", "Schedule", "schedule",
]  # fmt: skip

FORWARD, BACKWARD, INPUT, WEIGHTS = range(4)
LETTERS = "FBIW"
COSTS = 1, 2, 1, 1  # times that the actions take
BACKWARDS, ENDS = (BACKWARD, INPUT), (BACKWARD, WEIGHTS)  # give a gradient; need nothing any more
KINDS = {  # forwards of stage s before the first backward, but one; of p stages, m, v
    "gpipe": lambda s, p, m, v: m,
    "1f1b": lambda s, p, m, v: p - s - 1,
    "interleaved": lambda s, p, m, v: 2 * (p - s - 1) + (v - 1) * p,
    "zero_bubble": lambda s, p, m, v: p - s - 1,
}
MOST = 1 << 14  # of a kind, for tables are made in Python


class Schedule:
    """What stages do: `table` (stages, steps, 3) of int32 has action, microbatch and chunk of each.

    Actions are FORWARD, BACKWARD, or INPUT and WEIGHTS: 0 to 3. `items` (stages, steps, 2) are the
    numbers, from 1, of what an action takes of what a neighbour sends, and of what it sends itself;
    0 for nothing. `stages`, `steps`, `microbatches` and `chunks` are sizes. Raises `ArgumentError`
    if an action is missing or too early, if neighbours send and take in different orders, or if
    stages would wait for each other for ever.
    """

    def __init__(self, table: Any, kind: str = "own") -> None:
        with taking("Schedule: table"):
            self.table: np.ndarray[Any, Any] = np.array(table, "int32")
        if self.table.ndim != 3 or self.table.shape[2] != 3 or not self.table.size:
            raise shmem.ArgumentError(
                f"Schedule: table has shape {self.table.shape}, it must be (stages, steps, 3)"
            )
        self.kind, (self.stages, self.steps) = kind, self.table.shape[:2]
        _, self.microbatches, self.chunks = (int(k) + 1 for k in self.table.max(axis=(0, 1)))
        self._check_actions()
        self.items = self._find_items()
        if self._run(COSTS, None) is None:
            raise shmem.ArgumentError("Schedule: stages wait for each other for ever")

    def _check_actions(self) -> None:
        whole = [(m, c) for m in range(self.microbatches) for c in range(self.chunks)]
        for s, row in enumerate(self.table.tolist()):
            does = defaultdict(list)
            for action, *which in row:
                does[tuple(which)].append(action)
            for which in {*whole, *does}:
                if does[which] not in ([FORWARD, BACKWARD], [FORWARD, INPUT, WEIGHTS]):
                    raise shmem.ArgumentError(
                        f"Schedule: stage {s} does {does[which]} of microbatch {which[0]}, chunk "
                        f"{which[1]}; it must be forward, then backward, or input, then weights"
                    )

    def _find_items(self) -> np.ndarray[Any, Any]:
        action, microbatch, chunk = np.moveaxis(self.table, 2, 0)
        place = chunk * self.stages + np.arange(self.stages)[:, None]
        last = self.stages * self.chunks - 1
        items = np.zeros((*action.shape, 2), "int64")
        for kinds, step, ends in (((FORWARD,), 1, (0, last)), (BACKWARDS, -1, (last, 0))):
            does = np.isin(action, kinds)
            takes, gives = (does & (place != end) for end in ends)
            for k, mine in enumerate((takes, gives)):
                items[..., k] += np.cumsum(mine, axis=1) * mine
            for s in range(self.stages):
                to = (s + step) % self.stages
                given = microbatch[s][gives[s]], place[s][gives[s]] + step
                taken = microbatch[to][takes[to]], place[to][takes[to]]
                if not np.array_equal(given, taken):
                    raise shmem.ArgumentError(
                        f"Schedule: stage {to} takes what stage {s} sends in another order"
                    )
        return items

    def _run(self, costs: Sequence[float], window: int | None) -> np.ndarray[Any, Any] | None:
        """As `times`; None if stages wait for each other for ever."""
        p, steps = self.stages, self.steps
        # By direction and stage: when items were taken from its boxes, and when it sent them.
        taken: Any = [[[] for _ in range(p)] for _ in range(2)]
        sent: Any = [[[] for _ in range(p)] for _ in range(2)]
        times, at, now = np.zeros((p, steps, 2)), [0] * p, [0.0] * p
        table, items = self.table.tolist(), self.items.tolist()

        def go_on(s: int) -> bool:
            """Do the next action of a stage, if that can be."""
            if at[s] == steps:
                return False
            action, (take, give) = table[s][at[s]][0], items[s][at[s]]
            back = int(action != FORWARD)
            source, to = ((s + k) % p for k in ((1, -1) if back else (-1, 1)))
            if take > len(sent[back][source]):
                return False
            begin = max(now[s], sent[back][source][take - 1] if take else 0)
            taken[back][s] += [begin] * (take > 0)
            before = give - window if window and give else 0  # which must have been taken
            if before > len(taken[back][to]):
                del taken[back][s][len(taken[back][s]) - (take > 0) :]
                return False
            end = max(begin + costs[action], taken[back][to][before - 1] if before > 0 else 0)
            sent[back][s] += [end] * (give > 0)
            times[s, at[s]], now[s] = (begin, end), end
            at[s] += 1
            return True

        while any([go_on(s) for s in range(p)]):  # noqa: C419  (each of them)
            pass
        return times if min(at) == steps else None

    def times(
        self, costs: Sequence[float] = COSTS, window: int | None = None
    ) -> np.ndarray[Any, Any]:
        """When actions begin and end: (stages, steps, 2), if F, B, I and W take `costs`.

        An action begins when what it takes has been sent. It ends when what it sends has a box: of
        a `window` of them, of which one is free again when an action that takes from it begins.
        Raises `ArgumentError` if with this window stages wait for each other for ever.
        """
        found = self._run(costs, window)
        if found is None:
            raise shmem.ArgumentError(
                f"Schedule: with a window of {window} stages wait for each other for ever; "
                f"{self.window} is enough"
            )
        return found

    @cached_property
    def window(self) -> int:
        """The smallest window with which the whole takes no longer than without one."""

        def end(window: int | None) -> float:
            found = self._run(COSTS, window)
            return inf if found is None else float(found.max())

        best = end(None)
        return next(k for k in range(1, self.steps + 1) if end(k) == best)

    def bubble(self, costs: Sequence[float] = COSTS) -> float:
        """The share of the time in which stages do nothing."""
        busy = np.asarray(costs)[self.table[..., 0]].sum()
        return 1 - float(busy / (self.stages * self.times(costs).max()))

    def alive(self) -> list[int]:
        """The most activations that each stage keeps, of a microbatch and chunk each."""
        action = self.table[..., 0]
        more = (action == FORWARD).astype(int) - np.isin(action, ENDS)
        return [int(k) for k in np.cumsum(more, axis=1).max(axis=1)]

    def depth(self, since: Sequence[int] = (FORWARD,)) -> int:
        """How many places a chunk needs for what is kept from an action `since` to the last one.

        Microbatch m has place m % depth.
        """
        most = 1
        for row in self.table.tolist():
            kept: dict[int, set[int]] = defaultdict(set)
            for action, m, c in row:
                if action in since:
                    kept[c].add(m)
                    most = max(most, max(kept[c]) - min(kept[c]) + 1)
                if action in ENDS:
                    kept[c].discard(m)
        return most

    def draw(self, costs: Sequence[int] = COSTS) -> str:
        """The schedule as a text: a line for each stage, a column for each unit of time.

        `costs` are whole numbers. F3 is the forward of microbatch 3, F3' that of the next chunk.
        """
        times, width = self.times(costs).astype(int), len(str(self.microbatches - 1)) + self.chunks
        lines = []
        for s, row in enumerate(self.table.tolist()):
            line, now = f"stage {s}  ", 0
            for (action, m, c), (begin, end) in zip(row, times[s].tolist(), strict=True):
                size = (end - begin) * (width + 1) - 1
                label = f"{LETTERS[action]}{m}{chr(39) * c}"
                line += ".".ljust(width + 1) * (begin - now)
                line += label.ljust(size, "-" if end - begin > 1 else " ") + " "
                now = end
            lines.append(line.rstrip())
        return "\n".join(lines)


def schedule(kind: str, stages: int, microbatches: int, chunks: int = 1) -> Schedule:
    """Return a schedule: "gpipe", "1f1b", "interleaved" or "zero_bubble".

    `chunks` are stages of the model on each of the `stages` PEs, of "interleaved" alone; with
    several of them `stages` divides `microbatches`. Raises `ArgumentError` for what cannot be.
    """
    sizes = (("stages", stages), ("microbatches", microbatches), ("chunks", chunks))
    for what, size in sizes:
        integer(f"schedule: {what}", size, 1, MOST)
    if kind not in KINDS:
        raise shmem.ArgumentError(f"schedule: kind is {kind!r}; it can be {', '.join(KINDS)}")
    if chunks > 1 and (kind != "interleaved" or microbatches % stages):
        raise shmem.ArgumentError(
            f"schedule: {chunks} chunks, {microbatches} microbatches on {stages} stages, kind "
            f"{kind!r}: several chunks have 'interleaved', with a multiple of the stages"
        )
    rows = [_row(kind, s, stages, microbatches, chunks) for s in range(stages)]
    return Schedule(rows, kind)


def _row(kind: str, s: int, p: int, m: int, v: int) -> list[tuple[int, int, int]]:
    """The actions of a stage."""

    def nth(action: int, k: int) -> tuple[int, int, int]:
        """Go with p microbatches through all chunks, then with the next p."""
        group, chunk, at = k // (p * v), k // p % v, k % p
        return action, group * p + at, chunk if action == FORWARD else v - 1 - chunk

    forwards = [nth(FORWARD, k) for k in range(m * v)]
    ahead = KINDS[kind](s, p, m, v)
    row = forwards[:ahead]
    for k in range(m * v):
        row += forwards[ahead + k : ahead + k + 1]
        if kind != "zero_bubble":
            row.append(nth(BACKWARD, k))
        else:  # as many microbatches are alive on all stages
            row += [(INPUT, k, 0), (WEIGHTS, k - s, 0)][: 1 + (k >= s)]
    if kind == "zero_bubble":
        row += [(WEIGHTS, k, 0) for k in range(max(m - s, 0), m)]
    return row
