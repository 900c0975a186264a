"""How fast a job starts, and its kernels, in one run with what it is compared to.

python bench/launch

Each measurement is a file with `rows()`. It takes some minutes, most of them mpirun's.
"""

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import code_once
import ends
import starts
from harness import report

MEASUREMENTS = (code_once, starts, ends)


def main():
    missing = list(starts.missing())
    if missing:
        sys.exit("".join(f"bench/launch: {line}\n" for line in missing))
    rows = (row for measurement in MEASUREMENTS for row in measurement.rows())
    said = subprocess.run(["mpirun", "--version"], check=True, capture_output=True, text=True)
    open_mpi = said.stdout.split("\n")[0].split()[-1]
    report("launch", rows, **{"Open MPI": open_mpi, "mpi4py": version("mpi4py")})


main()
