"""A job: the shared memory of its PEs, as descriptors of unnamed memory.

One process creates it: the launcher, or PE 0 of a job started by another launcher. The other PEs
inherit the descriptors, or receive them through a socket (`start.bootstrap`). Nothing has a name in
a file system, so nothing remains when the last process ends, however it ends.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property

from gpushmem import settings
from gpushmem.errors import ArgumentError
from gpushmem.job.board import Board
from gpushmem.job.descriptors import fill_standard
from gpushmem.job.limits import within_limits

__all__ = ["Job", "adopt", "create", "current"]


@dataclass(frozen=True)
class Job:
    """A PE's handle on its job: its number, and the descriptors of the shared memory."""

    my_pe: int
    n_pes: int
    heap_size: int | None  # bytes, from the launcher's options; None: not set
    max_teams: int
    bootstrap: str  # how the PEs found each other, for messages
    board_fd: int  # see `board`
    control_fd: int  # sized by `init`, like the segments
    heap_fds: tuple[int, ...]  # one segment per PE
    n_nodes: int = 1  # that the PEs behave as if they were on

    @property
    def fds(self) -> tuple[int, ...]:
        """All descriptors, in the order of the fields."""
        return self.board_fd, self.control_fd, *self.heap_fds

    @property
    def local_pe(self) -> int:
        """The index of this PE on its machine: PEs that share memory are on one machine."""
        return self.my_pe

    @property
    def n_local(self) -> int:
        """Number of PEs on the machine: all."""
        return self.n_pes

    @property
    def node(self) -> range:
        """The PEs on this PE's node."""
        size = self.n_pes // self.n_nodes
        first = self.my_pe // size * size
        return range(first, first + size)

    def of(self, pe: int) -> Job:
        """Return the same job as seen by `pe`."""
        return replace(self, my_pe=pe)

    @cached_property
    def board(self) -> Board:
        """The job's board, mapped. Raises `ShmemError` if it cannot be mapped."""
        with within_limits(f"cannot map the board of a job of {self.n_pes} PEs"):
            return Board(self.board_fd)


def create(n_pes: int, heap_size: int | None = None, bootstrap: str = "local") -> Job:
    """Create the shared memory of a job, empty; the result is PE 0's, `of` gives other PEs'.

    Raises `ShmemError` if the system's limits do not allow it, `ArgumentError` if the PEs cannot be
    divided over the nodes.
    """
    fill_standard()
    max_teams, n_nodes = settings.get("GPUSHMEM_MAX_TEAMS"), settings.get("GPUSHMEM_NODES")
    if n_pes % n_nodes:
        pes = "1 PE" if n_pes == 1 else f"{n_pes} PEs"
        raise ArgumentError(
            f"{pes} cannot be divided equally over {n_nodes} nodes: --nodes (GPUSHMEM_NODES) must "
            "divide the number of PEs"
        )
    names = ("board", "control", *map(str, range(n_pes)))
    fds: list[int] = []
    with within_limits(f"cannot make the memory of a job of {n_pes} PEs"), ExitStack() as made:
        for name in names:
            fds.append(os.memfd_create(f"gpushmem-{name}"))
            made.callback(os.close, fds[-1])
        Board.create(fds[0], n_pes)
        made.pop_all()
    board, control, *heaps = fds
    return Job(0, n_pes, heap_size, max_teams, bootstrap, board, control, tuple(heaps), n_nodes)


_current: Job | None = None


def adopt(job: Job | None) -> None:
    """Make `job` the current job of this process."""
    global _current  # noqa: PLW0603
    _current = job


def current() -> Job | None:
    """Return the job of this process; None if it has not joined one yet."""
    return _current
