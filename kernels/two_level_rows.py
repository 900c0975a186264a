"""Different numbers of rows for each PE in two levels: inside a node, then between nodes.

With N nodes of m PEs, a row for PE j of node d first goes to PE j of its own node, then to its
goal: over the network a PE sends to N - 1 others, not to n - m, and m times as much to each.

    1. regroup    rows in the order of their goals, (d, j), are put in the order (j, d)
    2. inside     `AllToAllV`: PE j has the rows of all PEs k of its node for all (d, j)
    3. regroup    from the order (k, d) to (d, k)
    4. across     `AllToAllV`: the rows of node 0, of its PEs k, then those of node 1, ...

so they end in the order of their sources, (node, k). How many there are goes ahead on the same way,
by `AllToAll`: m times N numbers inside, then N times m between nodes, which are what the receiver
is told. In between a PE may have the rows of m PEs, and has room for them, twice.

A launch follows the one before on its stream, and each of the four plans keeps the rule of `plan`.
"""

from __future__ import annotations

from typing import Any

from gpushmem.kernels.collectives import AllToAll
from gpushmem.kernels.parts import part_of
from numba import cuda

import gpushmem as shmem

__all__ = ["LevelsOfRows"]


@shmem.jit
def regroup(x, counts, groups, width, y, starts, sums, turned, lost, team, epochs):
    """From segments (a, b) of rows, a slowest, of so many `groups` a, to segments (b, a).

    `counts` (groups, b) of x's, `turned` (b, groups) of y's, `sums` (b,) of all a, `lost` (1,) what
    is beyond the end of `x`. `starts` (blocks, counts.size + 1); a block has a part of each.
    """
    blk, parts, rows = cuda.blockIdx.x, counts.size // groups, x.size // width
    starts, first = starts[blk], cuda.threadIdx.x == 0
    if first:
        start = 0
        for k in range(counts.size):
            starts[k] = min(start, rows)
            start += max(counts[k], 0)
        starts[counts.size] = min(start, rows)
        if blk == 0:
            lost[0] = start - starts[counts.size]
    cuda.syncthreads()
    at = 0
    for b in range(parts):
        before = at
        for a in range(groups):
            start = starts[a * parts + b]
            count = starts[a * parts + b + 1] - start
            lower, upper = part_of(count, cuda.gridDim.x, blk)
            to = y[(at + lower) * width : (at + upper) * width]
            shmem.copy_block(to, x[(start + lower) * width : (start + upper) * width])
            at += count
            if first and blk == 0:
                turned[b * groups + a] = count
        if first and blk == 0:
            sums[b] = at - before


class LevelsOfRows:
    """What an `AllToAllV` does in two levels, with `per_node` PEs on each node."""

    def __init__(self, plan: Any, per_node: int) -> None:
        self._plan, m, nodes = plan, per_node, plan.n_pes // per_node
        self._teams = plan.team.split_2d(per_node)
        self._sizes, self._plans = (m, nodes), plan._plans
        launch = {"blocks": plan.blocks, "threads": plan.threads}
        try:
            for team, numbers, rows in zip(self._teams, (nodes, m), (1, m), strict=True):
                self._plans += [
                    AllToAll(size=numbers, dtype="int64", team=team, blocks=1),
                    type(plan)(
                        rows=plan.rows * rows, row=plan.row, dtype=plan.dtype, team=team, **launch
                    ),
                ]
        except shmem.HeapExhausted:  # on all PEs
            plan.free()
            self.free()
            raise
        self.inboxes = [box for made in self._plans for box in made.inboxes]
        self._first, self._middle, self._last = (
            shmem.device_array((rows * plan.rows, *plan.row), plan.dtype) for rows in (1, m, m)
        )
        self._first, self._last = plan.sendable(self._first), plan.sendable(self._last)
        self._starts = shmem.device_array((plan.blocks, plan.n_pes + 1), "int64")
        n = plan.n_pes
        self._turned, self._lost = (
            [plan.sendable(shmem.device_array(k, "int64")) for _ in range(2)] for k in (n, 1)
        )
        self._come = shmem.device_array(n, "int64")
        self._sums = [shmem.device_array(k, "int64") for k in (m, nodes)]
        self._received = [shmem.device_array(k, "int64") for k in (m, nodes)]

    def __call__(self, x: Any, counts: Any, out: Any, received: Any, stream: Any) -> None:
        """Send and receive, as the plan's call does."""
        plan, (m, nodes) = self._plan, self._sizes
        if x.shape[0] > plan.rows:
            raise shmem.ArgumentError(
                f"AllToAllV: x has {x.shape[0]} rows, in two levels the plan is for {plan.rows}"
            )
        tell_near, inside, tell_far, across = self._plans
        plan.on(stream)
        self._regroup(0, x, counts, nodes, self._first, stream)
        tell_near(self._turned[0], out=self._come, stream=stream)
        near, far = self._received
        inside(self._first, self._sums[0], out=self._middle, received=near, stream=stream)
        self._regroup(1, self._middle, self._come, m, self._last, stream)
        tell_far(self._turned[1], out=received, stream=stream)
        across(self._last, self._sums[1], out=out, received=far, stream=stream)

    def _regroup(self, level: int, x: Any, counts: Any, groups: int, y: Any, stream: Any) -> None:
        plan = self._plan
        plan.launch_as(
            (plan.blocks, plan.threads, stream), plan._epochs, regroup, plan.flat(x), counts,
            groups, plan.width, plan.flat(y), self._starts, self._sums[level],
            self._turned[level], self._lost[level],
        )  # fmt: skip

    def dropped(self) -> int:
        """How many rows there were for that are not there, and how many had no room at last."""
        return int(self._lost[0].numpy()[0]) + int(self._plans[3].dropped())

    def sends(self) -> tuple[int, int]:
        """Bytes and messages that a PE sends in a call in which no PE has rows."""
        sent = [plan.sends() for plan in self._plans]
        return sum(nbytes for nbytes, _ in sent), sum(messages for _, messages in sent)

    def free(self) -> None:
        """Give the teams back, after the plan; collective as its `free` is."""
        teams, self._teams = self._teams, ()
        for team in teams:
            team.destroy()
