"""Teams from MPI's communicators and PyTorch's process groups, and back.

Which rank a PE is follows from what `init` was given, without messages. So what waits is the making
of teams, whose waits are reported; neither library is imported here.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from gpushmem.arguments import public, shown, taking
from gpushmem.errors import ArgumentError, ArgumentTypeError
from gpushmem.ops import TEAM_INVALID, TEAM_WORLD
from gpushmem.ops.team import Team
from gpushmem.ops.teams import team_init
from gpushmem.runtime import current, given_ranks
from gpushmem.start.bootstrap.existing_groups import GivenComm, GivenGroup

__all__ = ["comm_from", "pes_of", "process_group_from", "team_from"]

TAG = 28515  # of the messages that make a communicator


@public
def team_from(group: Any) -> Team:
    """Make a team of the members of `group`, in its order: PE k of the team is its rank k.

    `group` is a communicator of mpi4py, a process group of `torch.distributed`, of any backend, or
    a `DeviceMesh` of one dimension, such as `mesh["tp"]`. Its ranks must be PEs: those of the
    communicator or process group that `init` was given, else of MPI_COMM_WORLD or the default
    process group, must have the numbers of the PEs. Collective over the group: only its members
    call. COMM_NULL, and a group or mesh that the caller is not in, give TEAM_INVALID. Otherwise
    as `team_init`; the team and the group do not end each other.

    Raises `ArgumentError` if a rank is not a PE, on all members.
    """
    what = "team_from"
    current(what)
    pes = _members(what, group)
    return TEAM_INVALID if pes is None else team_init(pes)


@public
def comm_from(team: Team) -> Any:
    """Make an mpi4py communicator of the PEs of `team`, in its order; `Free` ends it.

    Collective over the team: only its members call. TEAM_INVALID gives COMM_NULL. The ranks of the
    communicator that `init` was given, else of MPI_COMM_WORLD, must be the PEs: else
    `ArgumentError`. MPI 4: MPI_Comm_create_group.
    """
    what = "comm_from"
    mpi, pes = _mpi(what), pes_of(what, team)
    if not team:
        return mpi.COMM_NULL
    base, given = _group_of_pes(what, mpi), given_ranks()
    parent = (isinstance(given, GivenComm) and given.comm) or mpi.COMM_WORLD  # it may be freed
    team.sync()  # a member that is missing is reported here, and not by MPI
    return parent.Create_group(base.Incl(pes), TAG)


@public
def process_group_from(team: Team, **options: Any) -> Any:
    """Make a process group of `torch.distributed` of the PEs of `team`, in its order.

    Collective over the team: only its members call. `options` are those of
    `torch.distributed.new_group`: `backend`, by default that of the default group, `timeout` and so
    on. TEAM_INVALID gives `GroupMember.NON_GROUP_MEMBER`. The ranks of the process group that
    `init` was given, else of the default one, must be the PEs: else `ArgumentError`.
    `torch.distributed.destroy_process_group(group)` ends it.
    """
    what = "process_group_from"
    dist, pes = _dist(what), pes_of(what, team)
    if not team:
        return dist.GroupMember.NON_GROUP_MEMBER
    ranks = _ranks_of_pes(what, dist)
    team.sync()
    return dist.new_group(
        [ranks[pe] for pe in pes], use_local_synchronization=True, sort_ranks=False, **options
    )


def pes_of(what: str, team: Any) -> list[int]:
    """The PEs of a team, as numbers in the world."""
    current(what)
    if not isinstance(team, Team):
        raise ArgumentTypeError(f"{what}: team must be a Team, not {shown(team)}")
    return [team.translate_pe(k, TEAM_WORLD) for k in range(team.n_pes)]


def _members(what: str, group: Any) -> list[int] | None:
    """Return the PEs that are the ranks of a group; None if this process is not in it."""
    mpi, dist = sys.modules.get("mpi4py.MPI"), sys.modules.get("torch.distributed")
    mesh = getattr(sys.modules.get("torch.distributed.device_mesh"), "DeviceMesh", ())
    if mpi is not None and isinstance(group, mpi.Comm):
        return None if group == mpi.COMM_NULL else _pes_of_comm(what, mpi, group)
    if isinstance(group, mesh):
        group = _of_one_dimension(what, group)
    if dist is not None and (group is None or group is dist.GroupMember.NON_GROUP_MEMBER):
        return None
    if dist is not None and isinstance(group, dist.ProcessGroup):
        return _pes_of_group(what, dist, group)
    raise ArgumentTypeError(
        f"{what}: group must be a communicator of mpi4py, a process group of torch.distributed, or "
        f"a DeviceMesh, not {shown(group)}"
    )


def _of_one_dimension(what: str, mesh: Any) -> Any:
    """Return the process group of a mesh; None if this process is not in it."""
    if mesh.ndim != 1:
        names = mesh.mesh_dim_names
        example = f'mesh["{names[-1]}"]' if names else "init_device_mesh(..., mesh_dim_names=...)"
        raise ArgumentError(
            f"{what}: this mesh has {mesh.ndim} dimensions, of {tuple(mesh.shape)} ranks: pass one "
            f"dimension of it, as {example}"
        )
    return None if mesh.get_coordinate() is None else mesh.get_group()


# --- MPI


def _mpi(what: str) -> Any:
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is None:
        raise ArgumentError(f"{what}: this process has not imported mpi4py.MPI")
    return mpi


def _group_of_pes(what: str, mpi: Any) -> Any:
    """Return the MPI group whose ranks are the PEs."""
    given, world, backend = given_ranks(), mpi.COMM_WORLD, current(what).backend
    if isinstance(given, GivenComm):
        return given.members
    if (world.rank, world.size) != (backend.my_pe, backend.n_pes):
        raise ArgumentError(_others(what, "MPI_COMM_WORLD", world.rank, world.size, "comm"))
    return world.Get_group()


def _pes_of_comm(what: str, mpi: Any, comm: Any) -> list[int]:
    if comm.Is_inter():
        raise ArgumentError(
            f"{what}: this is an intercommunicator, of {comm.size} and {comm.remote_size} ranks: "
            "its Merge() makes a communicator of all"
        )
    group = comm.Get_group()
    pes = mpi.Group.Translate_ranks(group, None, _group_of_pes(what, mpi))
    strangers = [rank for rank, pe in enumerate(pes) if pe == mpi.UNDEFINED]
    return _all_pes(what, list(pes), strangers)


# --- PyTorch


def _dist(what: str) -> Any:
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_initialized():
        raise ArgumentError(f"{what}: call torch.distributed.init_process_group first")
    return dist


def _ranks_of_pes(what: str, dist: Any) -> Sequence[int]:
    """Return the ranks in the default group that the PEs are, in the order of the PEs."""
    given, backend = given_ranks(), current(what).backend
    if isinstance(given, GivenGroup):
        return given.members
    rank, size = dist.get_rank(), dist.get_world_size()
    if (rank, size) != (backend.my_pe, backend.n_pes):
        raise ArgumentError(_others(what, "the default process group", rank, size, "process_group"))
    return range(size)


def _pes_of_group(what: str, dist: Any, group: Any) -> list[int]:
    with taking(f"{what}: this process group has been destroyed, or is not of this process"):
        ranks = dist.get_process_group_ranks(group)
    pe_of = {rank: pe for pe, rank in enumerate(_ranks_of_pes(what, dist))}
    strangers = [k for k, rank in enumerate(ranks) if rank not in pe_of]
    return _all_pes(what, [pe_of.get(rank, -1) for rank in ranks], strangers)


# --- both


def _all_pes(what: str, pes: list[int], strangers: list[int]) -> list[int]:
    if strangers:
        are = "rank {} is not a PE" if len(strangers) == 1 else "ranks {} are not PEs"
        raise ArgumentError(
            f"{what}: {are.format(', '.join(map(str, strangers)))}, of the {len(pes)} of this "
            f"group: a team is of the {current(what).backend.n_pes} PEs of the job"
        )
    return pes


def _others(what: str, where: str, rank: int, size: int, parameter: str) -> str:
    backend = current(what).backend
    return (
        f"{what}: this is PE {backend.my_pe} of {backend.n_pes}, and rank {rank} of {size} in "
        f"{where}: which ranks the PEs are is not known. Give init their group, {parameter}=..."
    )
