"""Machines: which PEs share one, as the cpu backend requires; and which cores a PE may use."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from pathlib import Path

from gpushmem.errors import BackendUnavailable, BootstrapError, ShmemError
from gpushmem.job.pe_ranges import compact

__all__ = ["check", "elsewhere", "identity", "numbers"]

SHOWN = 16  # hosts named in an error
NEXT_STEP = (
    "the cpu backend shares memory, so its PEs must be on one machine: ask the launcher for one "
    "(mpirun --host NAME:{n}, srun -N 1 -n {n}, torchrun --nnodes 1 --nproc-per-node {n}), or use "
    "gpushmem run -n {n}"
)
NEXT_STEP_APART = (
    "PEs on several machines find each other through MPI (pip install mpi4py, with mpirun, or with "
    "srun --mpi=pmix and GPUSHMEM_BOOTSTRAP=mpi), torchrun, or GPUSHMEM_BOOTSTRAP=tcp://HOST:PORT, "
    "HOST being where PE 0 runs, with a secret GPUSHMEM_JOB_KEY"
)


def identity() -> bytes:
    """Return bytes that identify this machine and its current boot, for `check`."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = ""
    return json.dumps([name(), boot]).encode()


def name() -> str:
    """Return the machine's name."""
    return socket.gethostname()[:128]


def check(said: Mapping[int, bytes], n_pes: int) -> None:
    """Raise `BackendUnavailable`, listing each machine's PEs, unless there is only one machine."""
    if len(set(said.values())) <= 1:
        return
    on: dict[bytes, list[int]] = {}
    for pe in sorted(said):
        on.setdefault(said[pe], []).append(pe)
    places = [
        f"{compact(pes)} of {n_pes} on host {_label(what)}"
        for what, pes in list(on.items())[:SHOWN]
    ]
    more = f"; and {len(on) - SHOWN} more hosts" if len(on) > SHOWN else ""
    raise BackendUnavailable(
        f"the PEs are on {len(on)} machines: {'; '.join(places)}{more}. "
        + NEXT_STEP.format(n=n_pes)
    )


def numbers(said: Mapping[int, bytes]) -> list[int]:
    """Return the number of each PE's machine; machines are numbered by their first PE."""
    order = {what: k for k, what in enumerate(dict.fromkeys(said[pe] for pe in sorted(said)))}
    return [order[said[pe]] for pe in sorted(said)]


def _label(what: bytes) -> str:
    try:
        host, boot = json.loads(what)
    except ValueError:
        return "unknown"
    return f"{host} (boot {str(boot)[:8]})"


def elsewhere(n_pes: int, here: int | list[int], because: str, several: bool = False) -> ShmemError:
    """Return the error for a launcher that places only the PEs `here` on this machine.

    With `several`, PEs may be on different machines, but have no way to find each other.
    """
    if isinstance(here, int):
        some = f"{here} of the {n_pes} PEs are"
    else:
        some = f"{compact(here)} of {n_pes} {'is' if len(here) == 1 else 'are'}"
    text = f"only {some} on this machine, {name()} ({because}), the others elsewhere. "
    if several:
        return BootstrapError(text + NEXT_STEP_APART)
    return BackendUnavailable(text + NEXT_STEP.format(n=n_pes))


def cpus() -> str:
    """Return the cores this process may use, as text; equal for equal sets."""
    return ",".join(map(str, sorted(os.sched_getaffinity(0))))
