"""Teams of one PE: the numbers in use."""

from __future__ import annotations

from gpushmem import settings
from gpushmem.backends.teams import PREDEFINED, BaseTeams, too_many
from gpushmem.errors import ArgumentError, TeamError
from gpushmem.ops.team import Team

__all__ = ["Teams"]


class Teams(BaseTeams):
    """The existing teams; each consists of this PE, as PE 0."""

    def __init__(self) -> None:
        self._most = settings.get("GPUSHMEM_MAX_TEAMS")
        if self._most < len(PREDEFINED):
            raise ArgumentError(f"GPUSHMEM_MAX_TEAMS must be {len(PREDEFINED)} or more")
        self._numbers = set(map(int, PREDEFINED))

    def _has(self, team: int) -> bool:
        return team in self._numbers

    def _my_pe(self, team: int) -> int:
        return 0

    def _n_pes(self, team: int) -> int:
        return 1

    def _translate(self, src_team: int, src_pe: int, dst_team: int) -> int:
        return 0

    def _split(self, what: str, parent: int, ranks: range) -> Team:
        free = next((k for k in range(self._most) if k not in self._numbers), None)
        if free is None:
            raise too_many(what, self._most)
        self._numbers.add(free)
        return Team(free)

    def _split_2d(self, what: str, parent: int, row: range, column: range) -> tuple[Team, Team]:
        made = self._split(what, parent, row)
        try:
            return made, self._split(what, parent, column)
        except TeamError:
            self._destroy(made)
            raise

    def _init(self, pes: list[int]) -> Team:
        return self._split(f"team_init({pes})", 0, range(1))

    def _destroy(self, team: int) -> None:
        self._numbers.remove(int(team))
