"""Teams: numbers, under names in `Teams`."""

from __future__ import annotations

import numpy as np

from gpushmem import runtime
from gpushmem.compat.nvshmem.bindings import TeamConfig, TeamUniqueId
from gpushmem.compat.nvshmem.core import session
from gpushmem.compat.nvshmem.core.nvshmem_types import NvshmemError, NvshmemInvalid, Teams
from gpushmem.memory.array import SymmetricArray
from gpushmem.ops import CMP_NE, TEAM_INVALID

__all__ = [
    "TeamConfig", "TeamUniqueId", "get_team_unique_id", "team_destroy", "team_get_config",
    "team_init", "team_split_2d", "team_split_strided", "team_translate_pe",
]  # fmt: skip

MOST_IDS = 1024
# Row k has the PEs of the team whose unique id is k, counted from 1, by their numbers in the team.
_members: list[SymmetricArray] = []
_configs: dict[int, TeamConfig] = {}
_made = 0  # unique ids, by this PE


def began() -> None:
    """The runtime has been initialised."""
    global _made  # noqa: PLW0603
    _made = 0
    _configs.clear()
    for name in [name for name, team in Teams.items() if team >= len(_predefined)]:
        Teams.remove(name)
    n = session.call("n_pes")
    _members[:] = [runtime.zeros((MOST_IDS, n), np.int32)]


def ends() -> None:
    """The runtime is about to end."""
    runtime.free(_members.pop())


_predefined = [team for team in Teams.values() if team >= 0]


def get_team_unique_id() -> TeamUniqueId:
    """Make an id for `team_init`; one PE makes it, and sends its `value` to the others."""
    global _made  # noqa: PLW0603
    session.backend("get_team_unique_id")
    value = 1 + _made * session.call("n_pes") + session.call("my_pe")
    if value >= MOST_IDS:
        raise NvshmemError(
            f"get_team_unique_id: this PE has made {_made} ids, and can make no more: the PEs have "
            f"{MOST_IDS - 1} together; use team_split_strided, which needs none"
        )
    _made += 1
    return TeamUniqueId(value)


def team_init(
    team_config: TeamConfig,
    config_mask: int,
    npes: int,
    pe_idx_in_team: int,
    new_team_name: str | None = None,
) -> int:
    """Make a team of the `npes` PEs that call with the same `team_config.uniqueid`; return it."""
    session.backend("team_init")
    value = team_config.uniqueid
    if not 0 < value < MOST_IDS:
        raise NvshmemInvalid(
            f"team_init: {value} is no unique id: set team_config.uniqueid to the value of one "
            "that get_team_unique_id has made"
        )
    n = session.call("n_pes")
    if not 0 <= pe_idx_in_team < npes <= n:
        raise NvshmemInvalid(f"team_init: PE {pe_idx_in_team} of {npes}, in a job of {n} PEs")
    row = _members[0][value]
    for pe in range(n):
        place = row[pe_idx_in_team:]
        session.call("p", place, 1 + session.call("my_pe"), pe)
    session.call("wait_until_all", row[:npes], None, CMP_NE, 0)
    team = session.call("team_init", [int(pe) - 1 for pe in row[:npes].numpy()])
    return _named(team, new_team_name or f"TEAM_{int(team)}", team_config)


def _named(team: int, name: str, config: TeamConfig) -> int:
    Teams.add(name, int(team))
    _configs[int(team)] = config
    return int(team)


def team_split_strided(
    parent_team: int,
    start: int,
    stride: int,
    size: int,
    config: TeamConfig,
    config_mask: int,
    new_team_name: str | None = None,
) -> int | None:
    """Make a team of PEs of another; collective over it. None for a PE that is not in it."""
    session.backend("team_split_strided")
    team = session.call("team_split_strided", parent_team, start, stride, size)
    if team == TEAM_INVALID:
        return None
    return _named(team, new_team_name or f"TEAM_{int(team)}", config)


def team_split_2d(
    parent_team: int,
    xrange: int,
    xaxis_config: TeamConfig,
    xaxis_mask: int,
    yaxis_config: TeamConfig,
    yaxis_mask: int,
    new_team_name: str | None = None,
) -> tuple[int | None, int | None]:
    """Make the caller's row and column of a team; collective over it."""
    session.backend("team_split_2d")
    made = session.call("team_split_2d", parent_team, xrange)
    names = [
        f"{new_team_name}_{axis}" if new_team_name else f"TEAM_{axis}_{int(team)}"
        for axis, team in zip("XY", made, strict=True)
    ]
    x, y = (
        None if team == TEAM_INVALID else _named(team, name, config)
        for team, name, config in zip(made, names, (xaxis_config, yaxis_config), strict=True)
    )
    return x, y


def team_destroy(team: int | str) -> None:
    """Destroy a team, given as a number or a name; collective over it."""
    session.backend("team_destroy")
    number = Teams[team] if isinstance(team, str) else int(team)
    session.call("team_destroy", number)
    Teams.remove_by_value(number)
    _configs.pop(number, None)


def team_get_config(team: int) -> TeamConfig:
    """The configuration with which a team was made."""
    return _configs.get(int(team)) or TeamConfig()


def team_translate_pe(src_team: int, src_pe: int, dest_team: int) -> int:
    """The number of a team's PE in another team; -1 if it is not in it."""
    session.backend("team_translate_pe")
    if src_pe < 0:
        raise NvshmemError(f"team_translate_pe: there is no PE {src_pe}")
    found = session.call("team_translate_pe", src_team, src_pe, dest_team)
    return int(found)
