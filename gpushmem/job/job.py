"""A job: its PEs' shared memory, as descriptors of memory without a name.

`create` makes it in one process: the launcher, or the first PE of a job that somebody else has
started. The others inherit it, or get it through a socket (`bootstrap`). Nothing goes through
names, so nothing is left when the last process ends, however it ends.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property

from gpushmem import settings
from gpushmem.job.board import Board
from gpushmem.job.descriptors import fill_standard
from gpushmem.job.limits import within_limits

__all__ = ["Job", "adopt", "create", "current"]


@dataclass(frozen=True)
class Job:
    """How a PE finds the others."""

    my_pe: int
    n_pes: int
    heap_size: int | None  # bytes asked of the launcher; None: not asked
    max_teams: int
    bootstrap: str  # how the PEs found each other, for people
    board_fd: int  # see `board`
    control_fd: int  # `init` sizes it, and the segments
    heap_fds: tuple[int, ...]  # one segment per PE

    @property
    def fds(self) -> tuple[int, ...]:
        """All descriptors, in the order of the fields."""
        return self.board_fd, self.control_fd, *self.heap_fds

    @property
    def local_pe(self) -> int:
        """The PE's number on its machine: all PEs that share memory are there."""
        return self.my_pe

    @property
    def n_local(self) -> int:
        """How many PEs are on the machine: all."""
        return self.n_pes

    def of(self, pe: int) -> Job:
        """The same job as `pe` sees it."""
        return replace(self, my_pe=pe)

    @cached_property
    def board(self) -> Board:
        """The job's board, mapped. Raises `ShmemError` if there is no room for it."""
        with within_limits(f"cannot map the board of a job of {self.n_pes} PEs"):
            return Board(self.board_fd)


def create(n_pes: int, heap_size: int | None = None, bootstrap: str = "local") -> Job:
    """Make the shared memory of a job, empty; the job is PE 0's until `of` gives another's.

    Raises `ShmemError` when the system's limits do not allow it.
    """
    fill_standard()
    max_teams = settings.get("GPUSHMEM_MAX_TEAMS")
    names = ("board", "control", *map(str, range(n_pes)))
    fds: list[int] = []
    with within_limits(f"cannot make the memory of a job of {n_pes} PEs"), ExitStack() as made:
        for name in names:
            fds.append(os.memfd_create(f"gpushmem-{name}"))
            made.callback(os.close, fds[-1])
        Board.create(fds[0], n_pes)
        made.pop_all()
    board, control, *heaps = fds
    return Job(0, n_pes, heap_size, max_teams, bootstrap, board, control, tuple(heaps))


_current: Job | None = None


def adopt(job: Job | None) -> None:
    """Make `job` the one this process belongs to."""
    global _current  # noqa: PLW0603
    _current = job


def current() -> Job | None:
    """The job of this process, None if it has not joined one yet."""
    return _current
