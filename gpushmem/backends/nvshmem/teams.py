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
from nvshmem import core as nvshmem

from gpushmem.backends.hostcalls import check_members
from gpushmem.errors import ArgumentError, TeamError
from gpushmem.ops import TEAM_INVALID, TEAM_NODE, TEAM_SHARED, TEAM_WORLD
from gpushmem.ops.team import Team, teams_in

__all__ = ["Teams"]

PREDEFINED = (TEAM_WORLD, TEAM_SHARED, TEAM_NODE)
CONFIG_VERSION = (2 << 16) + 64  # of the structure whose `uniqueid` this mask tells is given
UNIQUE_ID = 2
LIMIT = 32  # teams that NVSHMEM keeps unless NVSHMEM_MAX_TEAMS says otherwise


class Teams:
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

    def check(self, team: int, what: str = "") -> None:
        """Raise unless this PE has the team."""
        if team not in PREDEFINED and team not in self._made:
            raise TeamError(
                f"{what and f'{what}: '}there is no team {int(team)}: it was destroyed, or this PE "
                f"is not in it{what and '; TEAM_INVALID is -1'}"
            )

    # --- the operations

    def team_my_pe(self, team: int) -> int:
        if team == TEAM_INVALID:
            return -1
        self.check(team)
        return int(bindings.team_my_pe(int(team)))

    def team_n_pes(self, team: int) -> int:
        if team == TEAM_INVALID:
            return -1
        self.check(team)
        return int(bindings.team_n_pes(int(team)))

    def team_translate_pe(self, src_team: int, src_pe: int, dst_team: int) -> int:
        if TEAM_INVALID in (src_team, dst_team):
            return -1
        self.check(src_team)
        self.check(dst_team)
        if not 0 <= src_pe < self.team_n_pes(src_team):
            return -1
        return int(bindings.team_translate_pe(int(src_team), int(src_pe), int(dst_team)))

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

    def team_split_strided(self, parent: int, start: int, stride: int, size: int) -> Team:
        n, last = self.team_n_pes(parent), start + (size - 1) * stride
        if size < 1 or (stride == 0 and size > 1) or not (0 <= start < n and 0 <= last < n):
            raise ArgumentError(
                f"team_split_strided: the PEs {start} + k * {stride} for k from 0 to {size - 1} "
                f"are not {size} PEs of a parent of {n}"
            )
        if stride < 0 and size > 1:
            raise ArgumentError(
                f"team_split_strided: NVSHMEM has no teams with a stride below 1, such as {stride}"
            )
        config, step, made = nvshmem.TeamConfig(), max(1, stride), ctypes.c_int(-1)
        if parent in self._listed:
            return self._part(parent, range(start, last + 1, step))
        self._synchronize()
        with suppress(bindings.NVSHMEMError):
            bindings.team_split_strided(
                int(parent), start, step, size, config.ptr, 0, ctypes.addressof(made)
            )
        return self._team(made.value, self.team_my_pe(parent) in range(start, last + 1, step))

    def team_split_2d(self, parent: int, xrange: int) -> tuple[Team, Team]:
        self.check(parent)
        if xrange < 1:
            raise ArgumentError(f"team_split_2d: a row must have 1 PE or more, not {xrange}")
        if parent in self._listed:
            n, me = self.team_n_pes(parent), self.team_my_pe(parent)
            first = me // xrange * xrange
            ranks = range(first, min(first + xrange, n)), range(me % xrange, n, xrange)
            return self._part(parent, ranks[0]), self._part(parent, ranks[1])
        config, xrange = nvshmem.TeamConfig(), min(xrange, self.team_n_pes(parent))
        row, column = ctypes.c_int(-1), ctypes.c_int(-1)
        self._synchronize()
        with suppress(bindings.NVSHMEMError):
            bindings.team_split_2d(
                int(parent), xrange, config.ptr, 0, ctypes.addressof(row), config.ptr, 0,
                ctypes.addressof(column),
            )  # fmt: skip
        return self._team(row.value, True), self._team(column.value, True)

    def team_init(self, pes: list[int]) -> Team:
        me, n = (int(ask(TEAM_WORLD)) for ask in (bindings.team_my_pe, bindings.team_n_pes))
        check_members("team_init", pes, me, n)
        config, made = nvshmem.TeamConfig(), ctypes.c_int(-1)
        config.version, config.num_contexts = CONFIG_VERSION, -1
        config.uniqueid = self._id_of(tuple(pes))
        self._synchronize()
        with suppress(bindings.NVSHMEMError):
            bindings.team_init(
                ctypes.addressof(made), config.ptr, UNIQUE_ID, len(pes), pes.index(me)
            )
        team = self._team(made.value, True)
        self._listed.add(team)
        return team

    def _part(self, parent: int, ranks: range) -> Team:
        """The team of some members of a parent that NVSHMEM cannot split: it has no stride."""
        pes = self.members(parent)
        chosen = [pes[rank] for rank in ranks]
        return self.team_init(chosen) if self.team_my_pe(parent) in ranks else TEAM_INVALID

    def _id_of(self, pes: tuple[int, ...]) -> int:
        """A number that the members alone give to NVSHMEM: they have all made as many such teams.

        So they need not be told it, as they would have to be one that NVSHMEM makes.
        """
        self._inits[pes] = self._inits.get(pes, 0) + 1
        text = f"{pes} {self._inits[pes]}"
        return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little") >> 1

    def team_destroy(self, team: int) -> None:
        if team in PREDEFINED:
            raise ArgumentError(f"team_destroy: {team!r} is predefined; it stays until finalize")
        self.check(team)
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
