"""How the analysis of the checker grows with the length of a job: seconds, and memory.

python bench/check_length.py [JOB ...]

Against the time of the job, which is recorded. "Steps" is a job whose PEs meet after each step: its
row has all that `gpushmem run --check` takes, since it is analysed while it runs.
"""

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

from harness import report, row, size

ROOT = Path(__file__).parent.parent
PES = 4
JOBS = {
    "additions": (12_500, 25_000, 100_000), "fetching additions": (6_250, 25_000),
    "a lock": (500, 2_000), "blocks": (125, 500, 1_000), "steps": (500, 2_000, 8_000),
}  # fmt: skip
AIM = {("additions", 100_000): "20 s, 1 GB"}


def in_a_pe(name, n):
    """Run a job."""
    from numba import cuda

    import gpushmem as shmem

    @shmem.jit
    def additions(word, data, n):
        for _ in range(n):
            shmem.atomic_add(word, 1, 0)

    @shmem.jit
    def fetching(word, data, n):
        for _ in range(n):
            shmem.atomic_fetch_add(word, 1, 0)

    @shmem.jit
    def lock(word, data, n):
        for _ in range(n):
            while shmem.atomic_compare_swap(word, 0, 1, 0) != 0:
                pass
            shmem.p(data, shmem.g(data, 0) + 1, 0)
            shmem.quiet()
            shmem.atomic_set(word, 0, 0)

    @shmem.jit
    def blocks(word, data, n):
        """Threads add, one of them sends, and waits for what comes: n times."""
        i, other = cuda.threadIdx.x, (shmem.my_pe() + 1) % shmem.n_pes()
        for k in range(n):
            data[i] += 1
            cuda.syncthreads()
            if i == 0:
                there, here = data[64:96], data[0:32]
                shmem.put_signal_nbi(there, here, word, k + 1, shmem.SIGNAL_SET, other)
                shmem.signal_wait_until(word, shmem.CMP_GE, k + 1)
                shmem.quiet()
            cuda.syncthreads()
            data[128 + i] += data[64 + i]
            cuda.syncthreads()
            if i == 0:
                shmem.barrier_all()
            cuda.syncthreads()

    @shmem.jit
    def step(word, data, k):
        other = (shmem.my_pe() + 1) % shmem.n_pes()
        shmem.put_signal_nbi(data[1:2], data[0:1], word, 1, shmem.SIGNAL_ADD, other)
        shmem.signal_wait_until(word, shmem.CMP_GE, k + 1)
        shmem.quiet()
        data[0] = data[1] + 1

    shmem.init()
    word, data = shmem.zeros(1, "uint64"), shmem.zeros(256, "int64")
    kernels = {"additions": additions, "fetching additions": fetching, "a lock": lock}
    if name == "steps":
        for k in range(n):
            step[1, 1](word, data, k)
            shmem.barrier_all()
    else:
        kernels.get(name, blocks)[1, 32 if name == "blocks" else 1](word, data, n)
    shmem.finalize()


def run(name, n, *options):
    command = [sys.executable, "-m", "gpushmem", "run", "--backend", "cpu", *options]
    subprocess.run(
        [*command, "-n", str(PES), __file__, "in-a-pe", name, str(n)], check=True, cwd=ROOT
    )


def measured(name, n):
    """Run this in a process of its own: seconds of the analysis and of the job, MB, events."""
    from gpushmem.check import command, log

    run(name, 10)
    base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    if name == "steps":
        run(name, n)
        job = time.perf_counter() - began
        began = time.perf_counter()
        found = command.Findings(command.Known(None))
        command.run_often(lambda: run(name, n), 1, None, found)
        events = 0
    else:
        with command.recorded() as folder:
            run(name, n)
            job = time.perf_counter() - began
            events = sum(len(trace.records) for trace in log.read(folder))
            began = time.perf_counter()
            found = command.Findings(command.Known(None))
            found.add(folder)
    assert found.problems == 0, found.text()
    took = time.perf_counter() - began
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base
    print(json.dumps([took, job, grown << 10, events]))


def rows(names):
    for name in names:
        for n in JOBS[name]:
            done = subprocess.run(
                [sys.executable, __file__, "measured", name, str(n)],
                check=True, capture_output=True, text=True, env=os.environ,
            )  # fmt: skip
            took, job, grown, events = json.loads(done.stdout.splitlines()[-1])
            of = f", {events:,} events" if events else ""
            what = f"{name}, {n:,} a PE{of}: memory {size(grown)}"
            yield row(what, took, "the job", job, AIM.get((name, n), ""), took / job)


if __name__ == "__main__":
    first, *rest = sys.argv[1:] or [""]
    if first in ("in-a-pe", "measured"):
        (in_a_pe if first == "in-a-pe" else measured)(rest[0], int(rest[1]))
    else:
        report("check-length", rows(sys.argv[1:] or JOBS))
