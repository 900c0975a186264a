"""How PEs find each other: inherited from gpushmem's launcher, or through another launcher."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gpushmem import settings
from gpushmem.errors import ArgumentError
from gpushmem.job import job as jobs
from gpushmem.job import ranks
from gpushmem.job.descriptors import fill_standard
from gpushmem.start.bootstrap import local, mpi, node_layout, shared_memory, slurm, tcp, torch
from gpushmem.start.bootstrap.channel import Channel, note
from gpushmem.start.bootstrap.forked import Inherited

__all__ = ["find_peers", "join", "note"]

AUTO = "auto"


@dataclass(frozen=True)
class Way:
    """One bootstrap: a way for PEs to find each other."""

    name: str
    recognised: Callable[[], bool]
    channel: Callable[[bool], Channel | None]  # None: this process is the only PE


# The first one recognised is used. Launchers start each other (srun starts one torchrun, or the
# helpers of mpirun, on every machine) without removing each other's variables: the innermost
# launcher comes first, less certain signs come late.
WAYS = (
    Way("torch", torch.with_agent, torch.channel),
    Way("mpi", mpi.of_its_own, mpi.channel),
    Way("slurm", slurm.recognised, slurm.channel),
    Way("mpi", mpi.recognised, mpi.channel),
    Way("torch", torch.recognised, torch.channel),
    Way("local", lambda: True, lambda several: None),
)


def join(name: str | None = None, through: Channel | None = None) -> jobs.Job:
    """Return the job that this process belongs to, joining it if necessary.

    `name` is "mpi", "torch", "slurm", "local" or "tcp://host:port", or "auto" to detect the
    launcher; default: GPUSHMEM_BOOTSTRAP. With `through` that channel is used. Raises
    `ArgumentError` for other names, `BootstrapError` if the PEs do not find each other,
    `BackendUnavailable` if they are on several machines.
    """
    fill_standard()
    way = _way(name or settings.get("GPUSHMEM_BOOTSTRAP"), given=name is not None)
    found = jobs.current()
    if found is None:
        channel = through or way.channel(False)
        found = local.join() if channel is None else shared_memory.join(channel)
        jobs.adopt(found)
    return found


def find_peers(name: str | None = None, through: Channel | None = None) -> ranks.Peers:
    """Return the other PEs of this process's job, on one or several machines; otherwise as `join`.

    The PEs share no memory: each learns the node layout, and receives one broadcast from PE 0
    (`Peers.broadcast`).
    """
    fill_standard()
    way = _way(name or settings.get("GPUSHMEM_BOOTSTRAP"), given=name is not None)
    found = ranks.current()
    if found is None:
        job = jobs.current()
        found = _find_peers(through or way.channel(True)) if job is None else Inherited(job)
        ranks.adopt(found)
    return found


def _find_peers(channel: Channel | None) -> ranks.Peers:
    return ranks.Peers() if channel is None else node_layout.exchange(channel)


def _way(name: str, given: bool) -> Way:
    if name == AUTO:
        return next(way for way in WAYS if way.recognised())
    try:
        if name.startswith(tcp.PREFIX):
            tcp.address(name)
            return Way(name, lambda: True, lambda several: tcp.channel(name, several))
        return _named(name)
    except ArgumentError as error:
        whose = "init: " if given else "environment variable GPUSHMEM_BOOTSTRAP: "
        raise ArgumentError(f"{whose}{error}") from None


def _named(name: str) -> Way:
    for way in WAYS:
        if way.name == name:
            return way
    names = ", ".join([AUTO, *dict.fromkeys(way.name for way in WAYS), "tcp://host:port"])
    raise ArgumentError(f"unknown bootstrap {name!r}; known are {names}")
