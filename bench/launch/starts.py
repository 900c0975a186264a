"""From the command to its end: PEs that say hello, beside ranks under mpirun that do."""

import shutil
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

from harness import row

HERE = Path(__file__).parent
AIMS = {2: 1, 16: 3, 64: 3}  # PEs, and how many times as fast
TURNS = 2
OURS = [sys.executable, "-m", "gpushmem", "run"]
MPI = ["mpirun", "--allow-run-as-root", "--oversubscribe"]
PROGRAMS = {
    "ours": (OURS, [HERE / "hello.py"]),
    "new": (OURS, [HERE / "hello.py", "new"]),
    "mpi": (MPI, [sys.executable, HERE / "hello_mpi.py"]),
}


def missing():
    """What has to be installed, as lines."""
    if not shutil.which("mpirun"):
        yield "there is no mpirun: apt-get install openmpi-bin libopenmpi-dev"
    if find_spec("mpi4py") is None:
        yield "there is no mpi4py: pip install mpi4py"


def took(name, n_pes):
    """Seconds of wall time."""
    launcher, program = PROGRAMS[name]
    began = time.perf_counter()
    command = [*launcher, "-n", str(n_pes), *program]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    return time.perf_counter() - began


def rows():
    for name in PROGRAMS:  # so that what is kept on disk is there
        took(name, 1)
    for n_pes, least in AIMS.items():
        turns = [{name: took(name, n_pes) for name in PROGRAMS} for _ in range(TURNS)]
        best = {name: min(turn[name] for turn in turns) for name in PROGRAMS}
        aim = f">= {least}"
        for name, kernel in (("ours", "its kernel on disk"), ("new", "a new kernel")):
            yield row(
                f"hello of {n_pes} PEs, {kernel}", best[name], "mpirun, mpi4py and njit",
                best["mpi"], aim, best["mpi"] / best[name],
            )  # fmt: skip
