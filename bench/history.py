"""A few quick benchmarks of each version, and which of them became slower.

python bench/history.py            measures what is checked out, and adds a row
python bench/history.py --compare  compares the last row with the median of those before

Each number is a ratio: our time by that of something else, measured in turns in the same run (see
`MEASURES`), so that rows of different machines can be compared. `load` is how many processes wanted
to run when it began: a row with more than a few tenths says little. It takes a minute. To
measure an older commit, name its folder: `PYTHONPATH=FOLDER python bench/history.py`.

asv would install each commit into an environment of its own, which takes longer than the
measurements; and it knows no ratios, so its numbers hold for one machine.
"""

import argparse
import csv
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from datetime import datetime, timezone
from pathlib import Path
from statistics import median

import foundations
import numpy as np
from harness import RESULTS, best_of, machine
from numba import njit

import gpushmem as shmem

HISTORY = RESULTS / "history.csv"
BOUND = 1.5  # times the median: measurements on a machine that has other work differ by as much
HERE = Path(__file__).parent
PES, MEETINGS, TURNS = 4, 100, 50
WORDS = 1 << 18  # 1 MiB of float32


def pair(name):
    """Seconds of the two functions that a function of this file, or of foundations, returns."""
    return shmem.spawn(_pair, 1, (name,))[0]


def _pair(name):
    shmem.init()
    took = best_of(TURNS, *getattr(foundations, name)())
    shmem.finalize()
    return took


def barrier():
    """Seconds of some barriers of 4 PEs, and of 4 processes."""
    forked = multiprocessing.get_context("fork")
    barrier, times = forked.Barrier(PES), forked.Queue()
    processes = [forked.Process(target=_wait, args=(barrier, times)) for _ in range(PES)]
    for process in processes:
        process.start()
    theirs = max(times.get(timeout=60) for _ in processes)
    for process in processes:
        process.join(60)
    return max(shmem.spawn(_meet, PES)), theirs


@shmem.jit
def meet(n):
    for _ in range(n):
        shmem.barrier_all()


def _meet():
    shmem.init()

    def many(n=MEETINGS):
        meet[1, 1](n)
        shmem.synchronize()

    many(1)
    took = _time_of(many)
    shmem.finalize()
    return took


def _wait(barrier, times):
    barrier.wait()
    times.put(_time_of(lambda: [barrier.wait() for _ in range(MEETINGS)]))


def _time_of(function):
    """The best of many turns: each fits into the time that a process has before others run."""
    best = float("inf")
    for _ in range(TURNS):
        began = time.perf_counter()
        function()
        best = min(best, time.perf_counter() - began)
    return best


def all_reduce():
    """Seconds of an all-reduce of 1 MiB by 2 PEs, and of NumPy's sum of the two arrays."""
    return shmem.spawn(_all_reduce, 2)[0]


def _all_reduce():
    shmem.init()
    src, dst = shmem.ones(WORDS, "float32"), shmem.zeros(WORDS, "float32")
    arrays = np.ones((2, WORDS), "float32")

    def ours():
        shmem.reduce(shmem.TEAM_WORLD, dst, src, "sum")

    ours()
    took = best_of(TURNS, ours, lambda: arrays.sum(axis=0))
    assert (dst.numpy() == 2).all()
    shmem.finalize()
    return took


def imports():
    """Seconds of `python -c 'import gpushmem'`, and of `python -c pass`."""
    commands = [[sys.executable, "-c", code] for code in ("import gpushmem", "pass")]
    return best_of(7, *(lambda c=c: subprocess.run(c, check=True) for c in commands))


def first_kernel():
    """Seconds of the first launch of a kernel with an empty store, and of njit's of a loop."""
    tries = []
    for _ in range(2):
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(
                [sys.executable, "-c", "import history; history.compile_both()"],
                cwd=HERE, env=os.environ | {"GPUSHMEM_CACHE_DIR": folder}, timeout=120,
                stdout=subprocess.PIPE, check=True,
            )  # fmt: skip
        tries.append(json.loads(done.stdout.splitlines()[-1]))
    return (min(times) for times in zip(*tries, strict=True))


def compile_both():
    """Print both times of `first_kernel`, for this process."""
    njit(lambda x: x + 1)(1)  # numba's own beginning
    x = np.ones(8, "f4")
    shmem.init()
    dst, src = shmem.zeros(1, "int64"), shmem.ones(1, "int64")
    times = [time.perf_counter()]
    foundations.put_many[1, 1](dst, src, 1)
    shmem.synchronize()
    times.append(time.perf_counter())
    foundations.saxpy_loop(x, np.float32(2), x, x)
    times.append(time.perf_counter())
    shmem.finalize()
    print(json.dumps([times[1] - times[0], times[2] - times[1]]))


MEASURES = {  # column: what is measured, by what it is divided, how
    "put": ("put of 8 bytes to oneself", "memcpy", lambda: pair("small_puts")),
    "launch": ("empty launch", "hand-over to a thread", lambda: pair("empty_launch")),
    "barrier": ("barrier of 4 PEs, in a kernel", "multiprocessing.Barrier", barrier),
    "all_reduce": ("all-reduce of 1 MiB, 2 PEs", "NumPy's sum", all_reduce),
    "import": ("import gpushmem", "python -c pass", imports),
    "first_kernel": ("first kernel, compiled", "njit of a loop", first_kernel),
}


def commit():
    """The commit that is measured."""
    command = ["git", "-C", Path(shmem.__file__).parent, "describe", "--always", "--dirty"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def measure():
    """Add a row."""
    row = {"date": f"{datetime.now(timezone.utc):%Y-%m-%d}", "commit": commit()}
    row |= machine() | {"gpushmem": shmem.__version__, "load": f"{os.getloadavg()[0]:.1f}"}
    for name, (what, against, measured) in MEASURES.items():
        ours, theirs = measured()
        row[name] = f"{ours / theirs:.4g}"
        print(f"{what}: {row[name]} times {against}")
    rows = [*kept(HISTORY), row]
    with open(HISTORY, "w", newline="") as file:
        writer = csv.DictWriter(file, list(row), restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def kept(path):
    """The rows of a file."""
    if not path.exists():
        return []
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def slower(rows):
    """Whether anything in the last row is `BOUND` times the median of those before; print all."""
    *before, last = rows
    found = False
    print(f"{last['commit']}, with a load of {last['load']}")
    for name in MEASURES:
        ratios = [float(row[name]) for row in before if row.get(name)]
        if not ratios:
            continue
        usual, now = median(ratios), float(last[name])
        worse = now > BOUND * usual
        found |= worse
        print(f"{name}: {now:.3g}, median of {len(ratios)} before {usual:.3g}", end="")
        print(f": SLOWER, more than {BOUND} times" if worse else "")
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Measure, or compare what was measured.")
    parser.add_argument(
        "--compare", nargs="?", type=Path, const=HISTORY, metavar="FILE",
        help=f"the last row of a file (this one: {HISTORY.name}) with those before",
    )  # fmt: skip
    file = parser.parse_args().compare
    if file is None:
        measure()
    elif len(kept(file)) < 2:
        sys.exit(f"{file} has fewer than two rows: measure first")
    else:
        sys.exit(slower(kept(file)))
