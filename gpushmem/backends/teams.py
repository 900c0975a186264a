"""Teams on all backends: the operations of hosts, with their checks; a backend makes the teams."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from gpushmem.backends.host.call_checks import check_members
from gpushmem.errors import ArgumentError, TeamError
from gpushmem.ops import TEAM_INVALID, TEAM_NODE, TEAM_SHARED, TEAM_WORLD
from gpushmem.ops.team import Team

__all__ = ["PREDEFINED", "BaseTeams", "too_many"]

PREDEFINED = (TEAM_WORLD, TEAM_SHARED, TEAM_NODE)


def too_many(what: str, most: int) -> TeamError:
    """The error for a team that would be one too many."""
    return TeamError(
        f"{what}: one of the PEs is in as many teams as there can be, {most} with the predefined "
        "ones: destroy some, or set GPUSHMEM_MAX_TEAMS before the job starts"
    )


class BaseTeams(ABC):
    """The teams of one PE."""

    @property
    def calls(self) -> dict[str, Callable[..., Any]]:
        """The operations, by name."""
        return {
            "team_my_pe": self.team_my_pe,
            "team_n_pes": self.team_n_pes,
            "team_translate_pe": self.team_translate_pe,
            "team_split_strided": self.team_split_strided,
            "team_split_2d": self.team_split_2d,
            "team_init": self.team_init,
            "team_destroy": self.team_destroy,
        }

    def check(self, team: int, what: str = "") -> None:
        """Raise unless this PE has the team; `what` is the operation that is called."""
        if not self._has(team):
            why = f"there is no team {int(team)}: it was destroyed, or this PE is not in it"
            raise TeamError(f"{what}: {why}; TEAM_INVALID is -1" if what else why)

    # --- the operations

    def team_my_pe(self, team: int) -> int:
        if team == TEAM_INVALID:
            return -1
        self.check(team)
        return self._my_pe(team)

    def team_n_pes(self, team: int) -> int:
        if team == TEAM_INVALID:
            return -1
        self.check(team)
        return self._n_pes(team)

    def team_translate_pe(self, src_team: int, src_pe: int, dst_team: int) -> int:
        if TEAM_INVALID in (src_team, dst_team):
            return -1
        self.check(src_team)
        self.check(dst_team)
        inside = 0 <= src_pe < self._n_pes(src_team)
        return self._translate(src_team, src_pe, dst_team) if inside else -1

    def team_split_strided(self, parent: int, start: int, stride: int, size: int) -> Team:
        self.check(parent)
        n, last = self._n_pes(parent), start + (size - 1) * stride
        if size < 1 or (stride == 0 and size > 1) or not (0 <= start < n and 0 <= last < n):
            raise ArgumentError(
                f"team_split_strided: the PEs {start} + k * {stride} for k from 0 to {size - 1} "
                f"are not {size} PEs of a parent of {n}"
            )
        step = stride or 1
        what = f"team_split_strided({int(parent)}, {start}, {stride}, {size})"
        return self._split(what, parent, range(start, start + size * step, step))

    def team_split_2d(self, parent: int, xrange: int) -> tuple[Team, Team]:
        self.check(parent)
        if xrange < 1:
            raise ArgumentError(f"team_split_2d: a row must have 1 PE or more, not {xrange}")
        n, me = self._n_pes(parent), self._my_pe(parent)
        first = me // xrange * xrange
        row, column = range(first, min(first + xrange, n)), range(me % xrange, n, xrange)
        return self._split_2d(f"team_split_2d({int(parent)}, {xrange})", parent, row, column)

    def team_init(self, pes: list[int]) -> Team:
        check_members("team_init", pes, self._my_pe(TEAM_WORLD), self._n_pes(TEAM_WORLD))
        return self._init(pes)

    def team_destroy(self, team: int) -> None:
        if team in PREDEFINED:
            raise ArgumentError(f"team_destroy: {team!r} is predefined; it stays until finalize")
        self.check(team, "team_destroy")
        self._destroy(team)

    # --- by the backend, of teams that this PE has

    @abstractmethod
    def _has(self, team: int) -> bool: ...

    @abstractmethod
    def _my_pe(self, team: int) -> int: ...

    @abstractmethod
    def _n_pes(self, team: int) -> int: ...

    @abstractmethod
    def _translate(self, src_team: int, src_pe: int, dst_team: int) -> int:
        """The number in one team of a PE of another, -1 if it is not in both."""

    @abstractmethod
    def _split(self, what: str, parent: int, ranks: range) -> Team:
        """The team of some members of a parent, all of whose members call."""

    @abstractmethod
    def _split_2d(self, what: str, parent: int, row: range, column: range) -> tuple[Team, Team]:
        """The calling PE's row and column; neither if one cannot be made."""

    @abstractmethod
    def _init(self, pes: list[int]) -> Team:
        """The team of the PEs listed, who alone call."""

    @abstractmethod
    def _destroy(self, team: int) -> None: ...
