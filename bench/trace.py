"""What a trace costs, and what counters do: `python bench/trace.py`.

Plans of gpushmem.kernels on 2 PEs, with and without GPUSHMEM_TRACE, in turns of new processes; one
event of a kernel's, and one that is counted, from calls that are made a million times; and, where
EZTrace and an MPI are installed (Debian's `eztrace`, `libopenmpi-dev`, `openmpi-bin`), one event of
EZTrace's, which writes OTF2, from a call of MPI's that does little.
"""

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
from harness import row, slowdowns
from threads import cases_of, length, series

import gpushmem as shmem
from gpushmem.progress import progress

TURNS, SERIES = 9, 5  # of processes; of calls in each
STEP = 2  # of the cases of each family
CALLS = 1_000_000


@shmem.jit
def puts(x, n):
    for k in range(n):
        shmem.p(x, k, shmem.my_pe())


@shmem.jit
def waits(x, n):
    for _ in range(n):
        shmem.wait_until(x, shmem.CMP_GE, 0)


def plans():
    """The best seconds of a call, by case."""
    found = {}
    for family, case in cases_of(STEP):
        shmem.init(heap_size="2G")
        _, call = family.fused(case)
        n = length(series(call, 2))
        what = f"{family.NAME.partition(':')[0]}, {family.label(case)}"
        found[what] = min(series(call, n) for _ in range(SERIES))
        shmem.finalize()
    return found


def calls():
    """The best seconds of a million calls, by kernel."""
    shmem.init()
    x, found = shmem.zeros(1, "int64"), {}
    for kernel in (puts, waits):
        best = float("inf")
        for _ in range(SERIES):
            shmem.synchronize()
            began = time.perf_counter()
            kernel[1, 1](x, CALLS)
            shmem.synchronize()
            best = min(best, time.perf_counter() - began)
        found[kernel.py_func.__name__] = best
    shmem.finalize()
    return found


def both(body, n_pes, setting="GPUSHMEM_TRACE"):
    """(what, seconds with a trace, without)."""
    traced, plain = {}, {}
    with progress(f"jobs: {body.__name__}", 2 * TURNS) as bar:
        for with_trace in bar.each([False, True] * TURNS, {False: "plain", True: "traced"}.get):
            best = traced if with_trace else plain
            with tempfile.TemporaryDirectory() as folder:
                os.environ[setting] = folder if with_trace else ""
                for what, seconds in shmem.spawn(body, n_pes)[0].items():
                    best[what] = min(best.get(what, np.inf), seconds)
    os.environ[setting] = ""
    return [(what, traced[what], plain[what]) for what in plain]


PROBES = """
#include <mpi.h>
#include <stdio.h>
int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    double best = 1e9;
    for (int series = 0; series < %d; series++) {
        int flag;
        double t = MPI_Wtime();
        for (int i = 0; i < %d; i++)
            MPI_Iprobe(MPI_ANY_SOURCE, 0, MPI_COMM_WORLD, &flag, MPI_STATUS_IGNORE);
        t = MPI_Wtime() - t;
        if (t < best) best = t;
    }
    printf("%%.9g\\n", best);
    MPI_Finalize();
}
"""


def eztrace():
    """Seconds of a million calls with EZTrace and without, bytes of one; None: not installed."""
    if not all(map(shutil.which, ("eztrace", "mpicc", "mpirun"))):
        return None
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        (here / "probes.c").write_text(PROBES % (SERIES, CALLS))
        subprocess.run(["mpicc", "-O2", "probes.c", "-o", "probes"], cwd=here, check=True)
        start = ["mpirun", "--allow-run-as-root", "-n", "1"]
        found = []
        for tool in (["eztrace", "-t", "openmpi"], []):
            done = subprocess.run(
                [*start, *tool, "./probes"], cwd=here, check=True, text=True,
                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            found.append(float(done.stdout.split()[-1]))
        written = sum(p.stat().st_size for p in here.glob("*_trace/**/*") if p.is_file())
        return *found, written / (SERIES * CALLS)


if __name__ == "__main__":
    one = [
        row(f"{kind}, of {what}", (ours - peer) / CALLS, "the call", peer / CALLS, aim, None)
        for kind, setting, aim in (
            ("one event, 64 bytes", "GPUSHMEM_TRACE", "<= 50 ns"),
            ("counting one", "GPUSHMEM_STATS", ""),
        )
        for what, ours, peer in both(calls, 1, setting)
    ]
    other = eztrace()
    if other is not None:
        traced, plain, nbytes = other
        what = f"EZTrace: one event, {nbytes:.0f} bytes, of MPI_Iprobe"
        one.append(row(what, (traced - plain) / CALLS, "the call", plain / CALLS, "", None))
    slowdowns("trace", "without", "<= 1.03, 1.15", both(plans, 2), more=one)
