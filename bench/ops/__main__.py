"""Operations inside a kernel, beside Open MPI's OSHMEM and mpi4py, in one run.

python bench/ops

Three programs measure the same: ours.py, oshmem.c and mpi.py. Each is started anew in every turn,
at 2 and at 4 PEs; the best of the turns counts. That evens out how near the cores of a virtual
machine are to each other, which changes from one minute to the next. With 4 PEs on 2 cores a row
also measures how soon a PE that waits yields its core.

A size is that of each PE's vector for allreduce, of its whole source for alltoall, of its whole
destination for fcollect. It takes some five minutes.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import version
from importlib.util import find_spec
from itertools import product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from harness import report, row

from gpushmem.progress import progress

HERE = Path(__file__).parent
TURNS = 3
ROUND, ROUNDS = 0.05, 3  # seconds of a round, rounds of a measurement
SIZES = [*(8**k for k in range(1, 9)), 64 << 20]
PES = (2, 4)
OURS, PEERS = "gpushmem", ("OSHMEM, in C", "mpi4py")
MPI = ["--allow-run-as-root", "--oversubscribe"]
# Without this, OSHMEM of Open MPI 4.1.4 crashes at exit: open-mpi/ompi issue 11604.
OSHMEM = [*MPI, "--mca", "opal_common_ucx_opal_mem_hooks", "0"]


def check_tools():
    """End the program if a peer is not installed, saying how to install it."""
    if missing := [tool for tool in ("oshcc", "oshrun", "mpirun") if not shutil.which(tool)]:
        print(
            f"bench/ops: there is no {', '.join(missing)}: "
            "apt-get install openmpi-bin libopenmpi-dev",
            file=sys.stderr,
        )
    if no_mpi4py := find_spec("mpi4py") is None:
        print("bench/ops: there is no mpi4py: pip install mpi4py", file=sys.stderr)
    if missing or no_mpi4py:
        sys.exit(2)


def programs(folder):
    """The command of each program up to the number of PEs, and from there."""
    binary = Path(folder) / "oshmem"
    subprocess.run(["oshcc", "-O2", HERE / "oshmem.c", "-o", binary], check=True)
    python = sys.executable
    commands = (
        ([python, "-m", "gpushmem", "run"], [HERE / "ours.py"]),
        (["oshrun", *OSHMEM], [binary]),
        (["mpirun", *MPI], [python, HERE / "mpi.py"]),
    )
    return dict(zip((OURS, *PEERS), commands, strict=True))


def lines(launcher, n_pes, program):
    """What a program says: a dict a measurement."""
    numbers = map(str, (ROUND, ROUNDS, *SIZES))
    done = subprocess.run(
        [*launcher, "-n", str(n_pes), *program, *numbers],
        check=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        env=os.environ | {"SHMEM_SYMMETRIC_SIZE": "1G"},
        text=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def measure():
    """{program: {(what, PEs, bytes): seconds}}."""
    best = {name: {} for name in (OURS, *PEERS)}
    with tempfile.TemporaryDirectory() as folder:
        commands = programs(folder)
        turns = list(product(range(TURNS), PES, commands))
        with progress("jobs", len(turns)) as bar:
            for _, n_pes, name in bar.each(turns, lambda t: f"{t[2]}, {t[1]} PEs, turn {t[0] + 1}"):
                for line in lines(commands[name][0], n_pes, commands[name][1]):
                    key = line["what"], line["n_pes"], line["bytes"]
                    best[name][key] = min(line["seconds"], best[name].get(key, float("inf")))
    return best


def text(what, n_pes, nbytes):
    return ", ".join([what, *([size(nbytes)] if nbytes else []), f"{n_pes} PEs"])


def size(nbytes):
    for unit, scale in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= scale:
            return f"{nbytes // scale} {unit}"
    return f"{nbytes} B"


def open_mpi():
    said = subprocess.run(["ompi_info", "--version"], check=True, capture_output=True, text=True)
    return said.stdout.split()[2].lstrip("v")


def main():
    check_tools()
    best = measure()
    rows = [
        row(text(*key), ours, peer, best[peer][key], ">= 1", best[peer][key] / ours)
        for key, ours in best[OURS].items()
        for peer in PEERS
    ]
    report("ops", rows, **{"Open MPI": open_mpi(), "mpi4py": version("mpi4py")})


main()
