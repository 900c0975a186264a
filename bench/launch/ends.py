"""From what goes wrong to its end: a PE that is killed, beside a rank of mpirun; a deadlock."""

import re
import subprocess
import sys
import time
from pathlib import Path

from harness import row
from starts import MPI, OURS

HERE = Path(__file__).parent
TURNS = 5
PES = (4, 16)


def ended(command):
    """Seconds from the moment that a program prints to the end of the command."""
    done = subprocess.run(
        command, check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    over = time.monotonic()
    return over - float(re.search(r"now ([0-9.]+)", done.stdout)[1])


def reported(command):
    """Seconds from the moment that the last PE begins to wait to the end of the report."""
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        for line in process.stderr:
            if line.startswith("Who waits for whom"):
                over = time.monotonic()
        return over - max(float(t) for t in re.findall(r"now ([0-9.]+)", process.stdout.read()))


def rows():
    for n in PES:
        ours = [*OURS, "-n", str(n), HERE / "killed.py"]
        mpi = [*MPI, "-n", str(n), sys.executable, HERE / "killed_mpi.py"]
        times = [(ended(ours), ended(mpi)) for _ in range(TURNS)]
        best, peer = (sorted(column)[TURNS // 2] for column in zip(*times, strict=True))
        yield row(
            f"{n} PEs, one killed, to the job's end", best, "mpirun and mpi4py", peer, "< 1 s",
            peer / best,
        )  # fmt: skip
    for n in PES:
        command = [*OURS, "-n", str(n), HERE / "deadlock.py"]
        middle = sorted(reported(command) for _ in range(TURNS))[TURNS // 2]
        yield row(f"{n} PEs, deadlock to report", middle, "", None, "< 1 s", None)
