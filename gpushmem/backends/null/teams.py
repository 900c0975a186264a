"""Teams of one PE: the numbers in use."""

from __future__ import annotations

from gpushmem import settings
from gpushmem.backends.hostcalls import check_members
from gpushmem.errors import ArgumentError, TeamError
from gpushmem.ops import TEAM_INVALID, TEAM_NODE, TEAM_SHARED, TEAM_WORLD
from gpushmem.ops.team import Team

__all__ = ["Teams"]

PREDEFINED = (TEAM_WORLD, TEAM_SHARED, TEAM_NODE)


class Teams:
    """The existing teams; each consists of this PE, as PE 0."""

    def __init__(self) -> None:
        self._most = settings.get("GPUSHMEM_MAX_TEAMS")
        if self._most < len(PREDEFINED):
            raise ArgumentError(f"GPUSHMEM_MAX_TEAMS must be {len(PREDEFINED)} or more")
        self._numbers = set(map(int, PREDEFINED))

    def check(self, team: int, operation: str = "") -> None:
        """Raise `TeamError`, naming the operation, unless the team exists."""
        if team not in self._numbers:
            why = f"there is no team {int(team)}: it was destroyed, or this PE is not in it"
            raise TeamError(f"{operation}: {why}; TEAM_INVALID is -1" if operation else why)

    def my_pe(self, team: int) -> int:
        """Number of this PE in the team, -1 for TEAM_INVALID."""
        return self.n_pes(team) - 1 if team != TEAM_INVALID else -1

    def n_pes(self, team: int) -> int:
        """How many PEs the team has, -1 for TEAM_INVALID."""
        if team == TEAM_INVALID:
            return -1
        self.check(team)
        return 1

    def translate_pe(self, src_team: int, src_pe: int, dst_team: int) -> int:
        """The number in one team of a PE of another."""
        if TEAM_INVALID in (src_team, dst_team):
            return -1
        self.check(src_team)
        self.check(dst_team)
        return 0 if src_pe == 0 else -1

    def split_strided(self, parent: int, start: int, stride: int, size: int) -> Team:
        """Only the parent's one PE can be requested."""
        self.check(parent)
        if size != 1 or start != 0:
            raise ArgumentError(
                f"team_split_strided: the PEs {start} + k * {stride} for k from 0 to {size - 1} "
                f"are not {size} PEs of a parent of 1"
            )
        return self._make(f"team_split_strided({int(parent)}, {start}, {stride}, {size})")

    def split_2d(self, parent: int, xrange: int) -> tuple[Team, Team]:
        """A row and a column of one PE."""
        self.check(parent)
        if xrange < 1:
            raise ArgumentError(f"team_split_2d: a row must have 1 PE or more, not {xrange}")
        what = f"team_split_2d({int(parent)}, {xrange})"
        row = self._make(what)
        try:
            return row, self._make(what)
        except TeamError:
            self._numbers.remove(row)
            raise

    def init(self, pes: list[int]) -> Team:
        """A team of the only PE there is."""
        check_members("team_init", pes, 0, 1)
        return self._make(f"team_init({pes})")

    def destroy(self, team: int) -> None:
        """Forget a team that was made."""
        if team in PREDEFINED:
            raise ArgumentError(f"team_destroy: {team!r} is predefined; it stays until finalize")
        self.check(team)
        self._numbers.remove(int(team))

    def _make(self, what: str) -> Team:
        free = next((k for k in range(self._most) if k not in self._numbers), None)
        if free is None:
            raise TeamError(
                f"{what}: one of the PEs is in as many teams as there can be, {self._most} "
                "with the predefined ones: destroy some, or set GPUSHMEM_MAX_TEAMS before the job "
                "starts"
            )
        self._numbers.add(free)
        return Team(free)
