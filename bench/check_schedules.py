"""How many schedules `--check-runs all` runs, of how many orders, and what each costs.

python bench/check_schedules.py [PROGRAM ...]

The programs of tests/check/schedules, without their mistakes. The peer is all orders of what their
threads do to words: of n operations, of which each thread does n_t, n! / (n_1! n_2! ...). The ratio
is the time of the whole command.
"""

import re
import subprocess
import sys
import time
from pathlib import Path

from harness import report

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))


def programs():
    """Name -> how many PEs, the file."""
    from tests.check.test_schedules import PROGRAMS

    return {name: (one.pes, one.words[0]) for name, one in sorted(PROGRAMS.items())}


def row_of(name, pes, path):
    """Run a program in all orders."""
    command = [sys.executable, "-m", "gpushmem", "run", "--backend", "cpu", "-n", pes, "--check"]
    command += ["--check-runs", "all", str(path), name, "fixed"]
    began = time.perf_counter()
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    seconds = time.perf_counter() - began
    found = re.search(
        r"(?:any of its (\d+)|its only) schedules? \((.*) orders? of (\d+)", done.stderr
    )
    schedules, orders, operations = found.groups(default="1")
    return {
        "what": f"{name}, {pes} PEs, {operations} operations", "ours": schedules,
        "against": "all orders", "peer": orders, "ratio": f"{seconds:.1f} s", "aim": "",
    }  # fmt: skip


def main(names):
    chosen = {name: one for name, one in programs().items() if name in (names or programs())}
    report("check-schedules", (row_of(name, *one) for name, one in chosen.items()))


if __name__ == "__main__":
    main(sys.argv[1:])
