"""NVIDIA's profilers round each PE: the command that starts a PE under one of them.

`nsys` records a timeline of the process. `ncu` measures single kernels. By default it runs a kernel
several times to collect all that it can, and lets one process at a time run one: a kernel that
waits for another PE's would wait for ever. So the instances of `ncu` talk to each other, and launch
kernels in lockstep, as its manual says for kernels that have to run at the same time; and they
collect only what takes one run of a kernel.
"""

from __future__ import annotations

import shlex
import shutil
import socket
from dataclasses import dataclass
from pathlib import Path

from gpushmem.errors import ArgumentError, BackendUnavailable

__all__ = ["PROFILERS", "Profiler", "find"]

# Name -> what brings it, and what it collects unless told otherwise.
PROFILERS = {
    "nsys": ("NVIDIA Nsight Systems", "--trace=cuda,nvtx,osrt"),
    "ncu": (
        "NVIDIA Nsight Compute",
        "--section LaunchStats --section Occupancy --metrics gpu__time_duration.sum",
    ),
}


@dataclass(frozen=True)
class Profiler:
    """A profiler, and the folder of its reports."""

    name: str
    path: str
    folder: Path
    collects: tuple[str, ...]
    port: int  # at which its instances meet

    def words(self, pe: int, n_pes: int) -> list[str]:
        """Return the command up to the program, for a PE of so many."""
        report = self.folder / f"pe{pe}"
        if self.name == "nsys":
            usual = ["--force-overwrite=true", f"--output={report}"]
            return [self.path, "profile", *usual, *self.collects]
        words = [self.path, "--target-processes", "all", "--force-overwrite"]
        if n_pes > 1:
            words += [
                "--communicator", "tcp", "--communicator-tcp-num-peers", str(n_pes),
                "--communicator-tcp-port", str(self.port), "--lockstep-kernel-launch",
            ]  # fmt: skip
            report = self.folder / f"pe{pe}-of"  # it appends a number of its own
        return [*words, *self.collects, "--export", str(report)]


def find(name: str, folder: Path, options: str | None = None) -> Profiler:
    """Return the profiler of this name; `options` say what it collects.

    Makes the folder. Raises `BackendUnavailable` if the profiler is not installed, `ArgumentError`
    if something else is wrong.
    """
    package, usual = PROFILERS[name]
    path = shutil.which(name)
    if path is None:
        raise BackendUnavailable(
            f"--{name}: there is no {name} on PATH: install {package}, which comes with the CUDA "
            "toolkit, and add the folder of its program to PATH"
        )
    try:
        collects = tuple(shlex.split(usual if options is None else options))
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise ArgumentError(f"--{name}: {error}") from None
    return Profiler(name, path, folder.resolve(), collects, _free_port())


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("localhost", 0))
        return int(listening.getsockname()[1])
