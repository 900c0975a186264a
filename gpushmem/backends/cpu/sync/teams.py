"""Teams of the cpu backend: created and destroyed by their members' hosts."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from functools import partial

from gpushmem.backends.cpu.sync.host_barrier import HostBarrier
from gpushmem.backends.cpu.sync.rendezvous import Rendezvous
from gpushmem.backends.cpu.sync.world import HALF_BYTES, LINE, RING_BYTES, World
from gpushmem.backends.teams import PREDEFINED, BaseTeams, too_many
from gpushmem.errors import ArgumentError, TeamError
from gpushmem.ops import TEAM_INVALID, TEAM_NODE, TEAM_SHARED, TEAM_WORLD
from gpushmem.ops.team import Team

__all__ = ["Teams"]

LONGEST = 40  # characters of a list of members in the name of a call, which a box must hold


class Teams(BaseTeams):
    """The table of teams of one PE. All members of a team use the same row of their tables."""

    first = len(PREDEFINED)  # the first row for teams that are made

    def __init__(self, world: World, barrier: HostBarrier) -> None:
        self._world, self._barrier = world, barrier
        self._table, self._most = world.teams, world.job.max_teams
        if self._most < self.first:
            raise ArgumentError(f"GPUSHMEM_MAX_TEAMS must be {self.first} or more")
        everyone = range(world.job.n_pes)
        # The team of all counts its rounds on from one `init` to the next: the others may be ahead.
        self._enter(TEAM_WORLD, everyone)
        node = world.job.node
        for team, pes in ((TEAM_SHARED, node), (TEAM_NODE, node), (self._most, everyone)):
            self._clear(team)
            self._enter(team, pes)
        self._rendezvous = Rendezvous(world, barrier)

    def close(self) -> None:
        """Forget all teams."""
        self._table["n_pes"] = 0

    def failed(self, launch: int) -> None:
        """The launch at this address has failed: none of its threads is in a collective."""
        rows = self._table["launch"] == launch
        self._table["inside"][rows] = self._table["launch"][rows] = 0

    # --- for the operations

    def _has(self, team: int) -> bool:
        return 0 <= team < self._most and bool(self._table["n_pes"][team])

    def _my_pe(self, team: int) -> int:
        return int(self._table["my_pe"][team])

    def _n_pes(self, team: int) -> int:
        return int(self._table["n_pes"][team])

    def _translate(self, src_team: int, src_pe: int, dst_team: int) -> int:
        return int(self._world.ranks[dst_team, self._barrier.pes(src_team)[src_pe]])

    def _split(self, what: str, parent: int, ranks: range) -> Team:
        members = self._barrier.pes(parent)
        agree = partial(self._barrier.largest, parent, what)
        return self._make(what, agree, [members[rank] for rank in ranks])

    def _split_2d(self, what: str, parent: int, row: range, column: range) -> tuple[Team, Team]:
        made = self._split(what, parent, row)
        try:
            return made, self._split(what, parent, column)
        except TeamError:  # on all PEs: the row is free
            self.forget(made)
            raise

    def _init(self, pes: list[int]) -> Team:
        text = str(pes)
        if len(text) > LONGEST:
            text = f"{text[: LONGEST - 12]}..., {zlib.crc32(text.encode()):08x}"
        what = f"team_init({text})"
        return self._make(what, partial(self._rendezvous.largest, pes, what), pes)

    def _destroy(self, team: int) -> None:
        self._barrier.largest(team, "team_destroy", 0)
        self.forget(team)

    def forget(self, team: int) -> None:
        """Leave a team whose members have ended all calls, without telling them."""
        self._table["n_pes"][team] = 0

    def members(self, team: int) -> list[int]:
        """The members of a team, as PEs of the job."""
        self.check(team)
        return self._barrier.pes(team)

    # --- rows of the table

    def _make(self, what: str, agree: Callable[[int], int], pes: Sequence[int]) -> Team:
        """Make a team of `pes`; `agree` gives the largest number of all PEs that call this."""
        joined = self._world.job.my_pe in pes
        row = -1
        while True:  # until the row is free on all of them
            free = self._free_row(row) if joined else row
            agreed = agree(free)
            if agreed == row:
                break
            row = agreed
            if row >= self._most:
                raise too_many(what, self._most)
        if joined:
            self._clear(row)
            self._enter(row, pes)
        agree(0)  # lines are cleared before any PE writes to them
        return Team(row) if joined else TEAM_INVALID

    def _free_row(self, first: int) -> int:
        free = (self._table["n_pes"] == 0).nonzero()[0]
        return next((int(row) for row in free if row >= max(first, self.first)), self._most)

    def _clear(self, team: int) -> None:
        """Reset the lines of a row: no round has taken place."""
        row = self._table[team]
        lines = self._world.memory(int(row["lines"]), int(row["boxes"] - row["lines"]))
        lines[:] = 0
        rings = int(row["stage"]) + 2 * HALF_BYTES
        for rank in range(self._world.job.n_pes):
            self._world.memory(rings + rank * RING_BYTES, 2 * LINE)[:] = 0
        self._table["round"][team] = 0

    def _enter(self, team: int, pes: Sequence[int]) -> None:
        self._world.members[team, : len(pes)] = pes
        self._world.ranks[team] = -1
        self._world.ranks[team, pes] = range(len(pes))
        my_pe = pes.index(self._world.job.my_pe)
        values = {"my_pe": my_pe, "n_pes": len(pes), "unchecked": 0, "inside": 0, "launch": 0}
        if team != TEAM_WORLD:
            values["calls"] = 0
        for field, value in values.items():
            self._table[field][team] = value
