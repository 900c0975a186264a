"""On which machine a PE runs: one for all of the cpu backend's, since they share memory."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from pathlib import Path

from gpushmem.bootstrap.channel import name_pes
from gpushmem.errors import BackendUnavailable, BootstrapError, ShmemError

__all__ = ["check", "elsewhere", "identity", "numbers"]

SHOWN = 16  # hosts that an error names
NEXT_STEP = (
    "the cpu backend shares memory, so its PEs must be on one machine: ask the launcher for one "
    "(mpirun --host NAME:{n}, srun -N 1 -n {n}, torchrun --nnodes 1 --nproc-per-node {n}), or use "
    "gpushmem run -n {n}"
)
NEXT_STEP_APART = (
    "PEs of several machines find each other through MPI (pip install mpi4py, with mpirun, or with "
    "srun --mpi=pmix and GPUSHMEM_BOOTSTRAP=mpi), torchrun, or GPUSHMEM_BOOTSTRAP=tcp://HOST:PORT, "
    "HOST being where PE 0 runs, with a secret GPUSHMEM_JOB_KEY"
)


def identity() -> bytes:
    """What distinguishes this machine, as it is now, from others; bytes for `check`."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = ""
    return json.dumps([name(), boot]).encode()


def name() -> str:
    """The machine's name."""
    return socket.gethostname()[:128]


def check(said: Mapping[int, bytes], n_pes: int) -> None:
    """Raise `BackendUnavailable` naming who is where unless these PEs are on one machine."""
    if len(set(said.values())) <= 1:
        return
    on: dict[bytes, list[int]] = {}
    for pe in sorted(said):
        on.setdefault(said[pe], []).append(pe)
    places = [
        f"{name_pes(pes, n_pes)} on host {_label(what)}" for what, pes in list(on.items())[:SHOWN]
    ]
    more = f"; and {len(on) - SHOWN} more hosts" if len(on) > SHOWN else ""
    raise BackendUnavailable(
        f"the PEs are on {len(on)} machines: {'; '.join(places)}{more}. "
        + NEXT_STEP.format(n=n_pes)
    )


def numbers(said: Mapping[int, bytes]) -> list[int]:
    """For each PE the number of its machine, in the order of the machines' first PEs."""
    order = {what: k for k, what in enumerate(dict.fromkeys(said[pe] for pe in sorted(said)))}
    return [order[said[pe]] for pe in sorted(said)]


def _label(what: bytes) -> str:
    try:
        host, boot = json.loads(what)
    except ValueError:
        return "unknown"
    return f"{host} (boot {str(boot)[:8]})"


def elsewhere(n_pes: int, here: int | list[int], because: str, several: bool = False) -> ShmemError:
    """The error when the launcher itself says that only `here` of the PEs are on this machine.

    With `several` they may be apart, but have no way to find each other.
    """
    some = f"{here} of the {n_pes} PEs are" if isinstance(here, int) else name_pes(here, n_pes)
    verb = "" if isinstance(here, int) else " are" if len(here) != 1 else " is"
    text = f"only {some}{verb} on this machine, {name()} ({because}), the others elsewhere. "
    if several:
        return BootstrapError(text + NEXT_STEP_APART)
    return BackendUnavailable(text + NEXT_STEP.format(n=n_pes))


def cpus() -> str:
    """The cores this process may use, as text that is equal where they are the same."""
    return ",".join(map(str, sorted(os.sched_getaffinity(0))))
