"""Groups of processes that a program has already, as `init` takes them: their ranks become PEs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from gpushmem.errors import ArgumentError, ArgumentTypeError
from gpushmem.start.bootstrap.channel import Channel
from gpushmem.start.bootstrap.mpi import Messages
from gpushmem.start.bootstrap.torch import GroupStore

__all__ = ["Given", "GivenComm", "GivenGroup", "given"]


class Given:
    """A group of processes; this one has the number `rank` of `size` in it, in words `what`."""

    what: str
    rank: int
    size: int

    def channel(self) -> Channel:
        """Return the channel between its members."""
        raise NotImplementedError

    def same(self, other: Given) -> bool:
        """Whether it has the members of `other`, in the same order, as far as this is known."""
        return type(self) is not type(other) or self._same(other)

    def _same(self, other: Any) -> bool:
        raise NotImplementedError


class GivenComm(Given):
    """An intracommunicator of mpi4py; `members` is its group."""

    what = "communicator"

    def __init__(self, comm: Any) -> None:
        self._mpi = mpi = sys.modules.get("mpi4py.MPI")
        if mpi is None or not isinstance(comm, mpi.Comm):
            raise ArgumentTypeError(
                f"init: comm must be a communicator of mpi4py, not a {type(comm).__name__}"
            )
        if comm == mpi.COMM_NULL:
            raise ArgumentError(
                "init: comm is COMM_NULL: this process is not in the communicator; only its "
                "members call init"
            )
        if comm.Is_inter():
            raise ArgumentError(
                f"init: comm is an intercommunicator, of {comm.size} and {comm.remote_size} ranks: "
                "its Merge() makes a communicator of all"
            )
        self.comm, self.members = comm, comm.Get_group()
        self.rank, self.size = comm.rank, comm.size

    def channel(self) -> Channel:
        """See `Given`."""
        return Messages(self._mpi, self.comm)

    def _same(self, other: Any) -> bool:
        mpi: Any = self._mpi
        return bool(mpi.Group.Compare(self.members, other.members) == mpi.IDENT)


class GivenGroup(Given):
    """A process group of `torch.distributed`, or one that is being made.

    `members` are its ranks in the default group.
    """

    what = "process group"

    def __init__(self, group: Any) -> None:
        if not all(hasattr(group, name) for name in ("rank", "size", "get_group_store")):
            raise ArgumentTypeError(
                "init: process_group must be a process group of torch.distributed, not a "
                f"{type(group).__name__}"
            )
        self._group, self.rank, self.size = group, group.rank(), group.size()
        self.members: Sequence[int] = range(self.size)
        dist: Any = sys.modules.get("torch.distributed")
        if dist is not None and isinstance(group, dist.ProcessGroup):
            self.members = dist.get_process_group_ranks(group)

    def channel(self) -> Channel:
        """See `Given`."""
        return GroupStore(self._group)

    def _same(self, other: Any) -> bool:
        return list(self.members) == list(other.members)


def given(comm: Any, process_group: Any) -> Given | None:
    """Return what `init` was given; None for nothing. Raises `ArgumentError` for what is none."""
    if comm is not None and process_group is not None:
        raise ArgumentError("init: give comm or process_group, not both")
    if comm is not None:
        return GivenComm(comm)
    return None if process_group is None else GivenGroup(process_group)
