"""Teams as values: a number that kernels take, with what one asks of a team as methods."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpushmem.ops.row import OPS

__all__ = ["Team", "teams_in"]


class Team(int):
    """A set of PEs that communicate among themselves; also an argument for kernels.

    `TEAM_WORLD` has all PEs, `TEAM_NODE` those on the calling PE's node, `TEAM_SHARED` those whose
    memory it can load from; `split_strided`, `split_2d` and `team_init` make others. A PE that is
    not a member of a team has `TEAM_INVALID` for it, which is false as a truth value. As a context
    manager it is destroyed at the end of the block. Teams are values of this PE: another PE may
    have another number for the same team. In kernels a team has `my_pe`, `n_pes`, `translate_pe`,
    `barrier` and `sync`, too. OpenSHMEM 1.5: shmem_team_t.
    """

    __slots__ = ()

    def __bool__(self) -> bool:
        return self >= 0

    @property
    def my_pe(self) -> int:
        """Number of the calling PE in the team; -1 if it is not a member."""
        return int(_call("team_my_pe", self))

    @property
    def n_pes(self) -> int:
        """How many PEs the team has; -1 if the calling PE is not a member."""
        return int(_call("team_n_pes", self))

    def translate_pe(self, pe: int, to: Team) -> int:
        """Number in the team `to` of this team's PE `pe`; -1 if it is not in both."""
        return int(_call("team_translate_pe", self, pe, to))

    def split_strided(self, start: int, stride: int, size: int) -> Team:
        """Make a team of this one's PEs `start + k * stride`; see `team_split_strided`."""
        made: Team = _call("team_split_strided", self, start, stride, size)
        return made

    def split_2d(self, xrange: int) -> tuple[Team, Team]:
        """The caller's row and column, if this team is laid out in rows; see `team_split_2d`."""
        made: tuple[Team, Team] = _call("team_split_2d", self, xrange)
        return made

    def barrier(self, *, stream: Any = None) -> None:
        """Wait until every PE of the team is here, and its puts have arrived; see `barrier`."""
        _call("barrier", self, stream=stream)

    def sync(self, *, stream: Any = None) -> None:
        """Wait until every PE of the team is here; see `sync`."""
        _call("sync", self, stream=stream)

    def destroy(self) -> None:
        """Destroy the team; collective over it. See `team_destroy`."""
        _call("team_destroy", self)

    def __enter__(self) -> Team:
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if self and kind is None:  # after an error the other PEs may be anywhere
            self.destroy()

    def __repr__(self) -> str:
        return {-1: "TEAM_INVALID", 0: "TEAM_WORLD", 1: "TEAM_SHARED", 2: "TEAM_NODE"}.get(
            int(self), f"Team({int(self)})"
        )

    __str__ = int.__repr__  # as a constant in a kernel's code it is written as a number


def _call(name: str, *args: Any, **kwargs: Any) -> Any:
    return OPS[name].function(*args, **kwargs)


def teams_in(result: Any) -> Iterator[Team]:
    """The teams that an operation has returned and the calling PE is a member of, if any."""
    for team in result if isinstance(result, tuple) else (result,):
        if isinstance(team, Team) and team:
            yield team
