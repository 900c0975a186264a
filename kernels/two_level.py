"""An all-reduce in two levels, for PEs on several nodes: little goes over the network.

Links inside a node (NVLink) are some ten times as fast as those between nodes. With N nodes of m
PEs, arrays of parts a b c ..., one for each PE of a node:

    1. inside      reduce-scatter: PE k of each node has its node's sum of part k
    2. across      all-reduce of part k between the PEs k of all nodes
    3. inside      all-gather: each PE has the sums of all parts

                     node 0              node 1
                  PE 0    PE 1        PE 2    PE 3
          1.       a       b           a       b          a of PE 0 is a0 + a1, of PE 2 a2 + a3
          2.       a <-----|---------> a       |          a0 + a1 + a2 + a3
                   |       b <---------|-----> b
          3.      a b     a b         a b     a b

What a PE sends of an array of S bytes, for n = N m PEs:

                     inside a node       over the network
    two levels       2 (m - 1) S / m     2 (N - 1) / N S / m
    two shot         2 (m - 1) S / n     2 (n - m) S / n

that is, 1 / m of the bytes over the network: of 2 nodes with 8 PEs S / 8, not S. Messages are those
of the three plans, one for each other PE and piece, two in the all-reduce in two shot.

Three kernels, one behind the other on the caller's stream, all in place: part k of x is sent from
by the second. Those inside have one workspace: both keep the rule of `plan`, for in each epoch of
either a PE sends to, and receives from, all others on its node; and both have as many epochs.

All PEs k end with the same bits after 2, and send them in 3. A sum of 16-bit floats is rounded
twice: inside the node and across.
"""

from __future__ import annotations

from typing import Any

from gpushmem.kernels.collectives import Collective, exchange, reduce_scatter
from gpushmem.kernels.parts import part_of
from gpushmem.kernels.pieces import part_size

import gpushmem as shmem

__all__ = ["TwoLevels", "levels_of"]


class Inside(Collective):
    """The collectives inside a node: reduce-scatter and all-gather of arrays that are in parts."""

    def scatter(self, x: Any, mine: Any, *, stream: Any) -> None:
        """Set `mine`, this PE's part of `x`, to the sum over the node."""
        self.launch(reduce_scatter, stream, x, mine, self.size, self.piece, *self._workspace)

    def gather(self, x: Any, mine: Any, *, stream: Any) -> None:
        """Set all other parts of `x` to what their PEs have."""
        self.launch(exchange, stream, mine, x, self.size, 0, self.piece, *self._workspace)


class TwoLevels:
    """What the plan of an all-reduce does in two levels, with `per_node` PEs on each node."""

    def __init__(self, plan: Any, per_node: int) -> None:
        options = {"dtype": plan.dtype, "blocks": plan.blocks, "threads": plan.threads}
        self._plan = plan
        self._teams = inside, across = plan.team.split_2d(per_node)
        self._part = part_of(plan.size, per_node, inside.my_pe)
        first, last = self._part
        self._plans: list[Any] = plan._plans
        try:
            part = part_size(plan.size, per_node)
            self._plans.append(Inside(size=part, team=inside, **options))
            self._plans.append(type(plan)(size=last - first, team=across, **options))
        except shmem.HeapExhausted:  # on all PEs
            plan.free()
            self.free()
            raise
        self.inboxes = [box for made in self._plans for box in made.inboxes]

    def __call__(self, x: Any, stream: Any) -> None:
        """Replace `x`, of one axis, by its sum."""
        inside, across = self._plans
        mine = self._plan.flat(x, *self._part)
        inside.scatter(x, mine, stream=stream)
        across(mine, stream=stream)
        inside.gather(x, mine, stream=stream)

    def sends(self) -> tuple[int, int]:
        """Bytes and messages that a PE sends in a call, at most."""
        (near_bytes, near_messages), (far_bytes, far_messages) = (p.sends() for p in self._plans)
        return 2 * near_bytes + far_bytes, 2 * near_messages + far_messages

    def free(self) -> None:
        """Give the teams back, after the plan; collective as its `free` is."""
        teams, self._teams = self._teams, ()
        for team in teams:
            team.destroy()


def levels_of(plan: Any, *, by_name: bool, kind: Any = TwoLevels) -> Any:
    """The two levels of a plan, if asked for `by_name`, or several nodes have several PEs; or None.

    `kind` makes them. They need as many PEs on each node, who follow each other in the team; and
    what is collective over the team alone: the team is all PEs, or the plan's memory is in an
    `Arena`. Raises `ArgumentError` if they are asked for and cannot be. Collective over such a
    team.
    """
    per_node = 0
    if by_name or not plan.reachable:
        per_node = members_of_each_node(plan) if plan.by_team else 0
    if by_name and not per_node:
        raise shmem.ArgumentError(
            f"{type(plan).__name__}: the algorithm 'two_level' is for nodes with as many PEs each, "
            "one behind the other in the team; and for TEAM_WORLD, or a team whose plan is in an "
            "Arena: take another one"
        )
    return kind(plan, per_node) if by_name or 1 < per_node < plan.n_pes else None


def members_of_each_node(plan: Any) -> int:
    """How many members of the team are on each node; 0 if that, or their order, is not regular."""
    team, me = plan.team, plan.my_pe
    near = [pe for pe in range(plan.n_pes) if team.translate_pe(pe, shmem.TEAM_SHARED) >= 0]
    first = me // len(near) * len(near)
    mine = len(near) if near == list(range(first, first + len(near))) else 0
    largest, given = (plan.memory(2, dtype="int64") for _ in range(2))
    given.copy_from([mine, -mine])
    shmem.reduce(team, largest, given, "max")  # the largest, and the smallest
    return mine if sum(largest.numpy()) == 0 else 0
