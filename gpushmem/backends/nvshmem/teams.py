"""Teams of the nvshmem backend: NVSHMEM's own, whose numbers kernels get.

nvshmem.core 0.4.1 is not used: it registers teams by name, so that a team destroyed by other PEs
blocks the next one of that name, and it passes the arguments of 2D splits in another order. A split
that fails leaves no team; NVSHMEM gives no reason for it.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from hashlib import blake2b
from typing import Any

from nvshmem import bindings

from gpushmem.backends.teams import PREDEFINED, BaseTeams
from gpushmem.errors import ArgumentError, TeamError
from gpushmem.ops import TEAM_INVALID, TEAM_SHARED, TEAM_WORLD
from gpushmem.ops.team import Team, teams_in

__all__ = ["Teams"]

CONFIG_VERSION = (2 << 16) + 64  # of the structure whose `uniqueid` this mask tells is given
UNIQUE_ID = 2
LIMIT = 32  # teams that NVSHMEM keeps unless NVSHMEM_MAX_TEAMS says otherwise


class Teams(BaseTeams):
    """The teams of one PE."""

    _inits: dict[tuple[int, ...], int] = {}  # members -> how often `team_init`; NVSHMEM stays up

    def __init__(self, synchronize: Callable[[], None]) -> None:
        self._synchronize = synchronize  # waits for this PE's kernels, which may use a team
        self._made: set[int] = set()
        self._listed: set[int] = set()  # those of them that `team_init` has made

    @staticmethod
    def limit() -> int:
        """The number of teams a PE can be in."""
        return int(os.environ.get("NVSHMEM_MAX_TEAMS") or LIMIT)

    def close(self) -> None:
        """Destroy the remaining teams."""
        for team in sorted(self._made):
            bindings.team_destroy(team)
        self._made.clear()
        self._listed.clear()

    def is_near(self, pe: int) -> bool:
        """Whether a PE's memory can be reached by loads and stores."""
        return self.team_translate_pe(TEAM_WORLD, pe, TEAM_SHARED) >= 0

    def members(self, team: int) -> list[int]:
        """The members of a team, as PEs of the job."""
        n = self.team_n_pes(team)
        return [self.team_translate_pe(team, pe, TEAM_WORLD) for pe in range(n)]

    def returned(self, result: Any) -> Iterator[tuple[int, list[int]]]:
        """The teams that an operation has returned, if any: their numbers, and members."""
        for team in teams_in(result):
            yield int(team), self.members(team)

    # --- for the operations

    def _has(self, team: int) -> bool:
        return team in PREDEFINED or team in self._made

    def _my_pe(self, team: int) -> int:
        return int(bindings.team_my_pe(int(team)))

    def _n_pes(self, team: int) -> int:
        return int(bindings.team_n_pes(int(team)))

    def _translate(self, src_team: int, src_pe: int, dst_team: int) -> int:
        return int(bindings.team_translate_pe(int(src_team), int(src_pe), int(dst_team)))

    def _split(self, what: str, parent: int, ranks: range) -> Team:
        if ranks.step < 0 and len(ranks) > 1:
            raise ArgumentError(
                f"team_split_strided: NVSHMEM has no teams with a stride below 1, such as "
                f"{ranks.step}"
            )
        if parent in self._listed:
            return self._part(parent, ranks)
        config, made = bindings.TeamConfig(), ctypes.c_int(-1)
        self._synchronize()
        with suppress(bindings.NVSHMEMError):
            bindings.team_split_strided(
                int(parent), ranks.start, max(1, ranks.step), len(ranks), config.ptr, 0,
                ctypes.addressof(made),
            )  # fmt: skip
        return self._team(made.value, self._my_pe(parent) in ranks)

    def _split_2d(self, what: str, parent: int, row: range, column: range) -> tuple[Team, Team]:
        if parent in self._listed:
            return self._part(parent, row), self._part(parent, column)
        config, xrange = bindings.TeamConfig(), min(column.step, self._n_pes(parent))
        x, y = ctypes.c_int(-1), ctypes.c_int(-1)
        self._synchronize()
        with suppress(bindings.NVSHMEMError):
            bindings.team_split_2d(
                int(parent), xrange, config.ptr, 0, ctypes.addressof(x), config.ptr, 0,
                ctypes.addressof(y),
            )  # fmt: skip
        return self._team(x.value, True), self._team(y.value, True)

    def _init(self, pes: list[int]) -> Team:
        config, made = bindings.TeamConfig(), ctypes.c_int(-1)
        config.version, config.num_contexts = CONFIG_VERSION, -1
        config.uniqueid = self._id_of(tuple(pes))
        self._synchronize()
        with suppress(bindings.NVSHMEMError):
            bindings.team_init(
                ctypes.addressof(made), config.ptr, UNIQUE_ID, len(pes),
                pes.index(self._my_pe(TEAM_WORLD)),
            )  # fmt: skip
        team = self._team(made.value, True)
        self._listed.add(team)
        return team

    def _part(self, parent: int, ranks: range) -> Team:
        """The team of some members of a parent that NVSHMEM cannot split: it has no stride."""
        pes = self.members(parent)
        chosen = [pes[rank] for rank in ranks]
        return self._init(chosen) if self._my_pe(parent) in ranks else TEAM_INVALID

    def _id_of(self, pes: tuple[int, ...]) -> int:
        """A number that the members alone give to NVSHMEM: they have all made as many such teams.

        So they need not be told it, as they would have to be one that NVSHMEM makes.
        """
        self._inits[pes] = self._inits.get(pes, 0) + 1
        text = f"{pes} {self._inits[pes]}"
        return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little") >> 1

    def _destroy(self, team: int) -> None:
        self._synchronize()
        bindings.team_destroy(int(team))
        self._made.discard(int(team))
        self._listed.discard(int(team))

    def _team(self, made: int, member: bool) -> Team:
        if made >= 0:
            self._made.add(made)
            return Team(made)
        if member:
            raise TeamError(
                f"NVSHMEM could not make the team: it keeps {self.limit()} with the predefined "
                "ones: destroy some, or set NVSHMEM_MAX_TEAMS before the job starts"
            )
        return TEAM_INVALID
