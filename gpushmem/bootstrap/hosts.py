"""On which machine a PE runs: PEs of the cpu backend share memory, so it must be one."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from pathlib import Path

from gpushmem.bootstrap.channel import name_pes
from gpushmem.errors import BackendUnavailable

__all__ = ["check", "elsewhere", "identity"]

SHOWN = 16  # hosts that an error names
NEXT_STEP = (
    "the cpu backend shares memory, so its PEs must be on one machine: ask the launcher for one "
    "(mpirun --host NAME:{n}, srun -N 1 -n {n}, torchrun --nnodes 1 --nproc-per-node {n}), or use "
    "gpushmem run -n {n}"
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


def _label(what: bytes) -> str:
    try:
        host, boot = json.loads(what)
    except ValueError:
        return "unknown"
    return f"{host} (boot {str(boot)[:8]})"


def elsewhere(n_pes: int, here: int | list[int], because: str) -> BackendUnavailable:
    """The error when the launcher itself says that only `here` of the PEs are on this machine."""
    some = f"{here} of the {n_pes} PEs are" if isinstance(here, int) else name_pes(here, n_pes)
    verb = "" if isinstance(here, int) else " are" if len(here) != 1 else " is"
    return BackendUnavailable(
        f"only {some}{verb} on this machine, {name()} ({because}), the others elsewhere. "
        + NEXT_STEP.format(n=n_pes)
    )


def cpus() -> str:
    """The cores this process may use, as text that is equal where they are the same."""
    return ",".join(map(str, sorted(os.sched_getaffinity(0))))
