"""NVSHMEM's device code on a CPU against the cpu backend's operations, in one run.

python bench/nvshmem_cpu.py

Two PEs; each number is the best of ROUNDS rounds in which the backends take turns. Then the time
until a first kernel has run: with nothing kept, and with NVSHMEM's functions or all code kept.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from harness import report, row

from gpushmem.progress import progress

ROOT = Path(__file__).parent.parent
BACKENDS = "nvshmem-cpu", "cpu"
ROUNDS = 3


def measure():
    """In a PE: seconds per operation, printed by PE 0."""
    import numpy as np
    from numba import cuda

    import gpushmem as shmem

    @shmem.jit
    def elements(x, flag, n):
        if shmem.my_pe() == 0:
            for _ in range(n):
                shmem.p(x, 1.0, 1)
            shmem.quiet()

    @shmem.jit
    def block_puts(x, flag, n):
        if shmem.my_pe() == 0:
            for _ in range(n):
                shmem.put_block(x, x, 1)
            shmem.quiet()

    @shmem.jit
    def rounds(x, flag, n):
        me = shmem.my_pe()
        for i in range(n):
            if me == 0:
                shmem.signal_op(flag, 2 * i + 1, shmem.SIGNAL_SET, 1)
                shmem.signal_wait_until(flag, shmem.CMP_GE, 2 * i + 2)
            else:
                shmem.signal_wait_until(flag, shmem.CMP_GE, 2 * i + 1)
                shmem.signal_op(flag, 2 * i + 2, shmem.SIGNAL_SET, 0)

    @shmem.jit
    def barriers(x, flag, n):
        for _ in range(n):
            shmem.barrier_all()

    @shmem.jit
    def block_barriers(x, flag, n):
        for _ in range(n):
            shmem.barrier_all_block()

    @shmem.jit
    def sums(x, flag, n):
        for _ in range(n):
            shmem.reduce_block(shmem.TEAM_WORLD, x, x, "sum")
            cuda.syncthreads()

    cases = (
        ("p of 8 bytes", elements, 1, 1, 20_000),
        ("put_block of 64 KB, 32 threads", block_puts, 8192, 32, 100),
        ("signal there and back", rounds, 1, 1, 2_000),
        ("barrier_all", barriers, 1, 1, 2_000),
        ("barrier_all_block, 32 threads", block_barriers, 1, 32, 500),
        ("reduce_block of 8 bytes, 32 threads", sums, 1, 32, 100),
        ("reduce_block of 64 KB, 32 threads", sums, 8192, 32, 20),
    )
    found = {}
    with shmem.session():
        for what, kernel, size, threads, n in cases:
            x, flag = shmem.zeros(size), shmem.zeros(1, np.uint64)
            for _ in range(2):
                flag[:] = np.zeros(1, np.uint64)
                shmem.barrier_all()
                began = time.perf_counter()
                kernel[1, threads](x, flag, n)
                shmem.synchronize()
                found[what] = (time.perf_counter() - began) / n
            shmem.free(x), shmem.free(flag)
        if shmem.my_pe() == 0:
            print(json.dumps(found))


def run(backend, *args, env=None):
    command = [sys.executable, "-m", "gpushmem", "run", "--backend", backend, "-n", "2", *args]
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, cwd=ROOT, env=os.environ | (env or {})
    )
    return done.stdout


def first_kernel():
    """Seconds of whole commands with examples/ring.py: nothing kept, NVSHMEM's, all."""
    with tempfile.TemporaryDirectory() as folder:
        env = {"GPUSHMEM_CACHE_DIR": folder}
        script = Path(folder, "ring.py")
        text = (ROOT / "examples/ring.py").read_text()
        times = []
        for more in ("", "\n# the kernel's lines have moved\n", None):
            if more is not None:
                script.write_text(more + text)
            began = time.perf_counter()
            run("nvshmem-cpu", str(script), env=env)
            times.append(time.perf_counter() - began)
    return times


def main():
    best = {backend: {} for backend in BACKENDS}
    with progress("jobs", ROUNDS * len(BACKENDS)) as bar:
        for backend in bar.each(BACKENDS * ROUNDS):
            for what, seconds in json.loads(run(backend, __file__, "pe")).items():
                best[backend][what] = min(seconds, best[backend].get(what, seconds))
    ours, peer = (best[backend] for backend in BACKENDS)
    rows = [
        row(what, ours[what], "backend cpu", peer[what], "2 to 20", ours[what] / peer[what])
        for what in ours
    ]
    for what, seconds in zip(
        ("first run of examples/ring.py", "another kernel", "the same again"),
        first_kernel(), strict=True,
    ):  # fmt: skip
        rows.append(row(what, seconds, "", None, "", None))
    report("nvshmem-cpu", rows)


if __name__ == "__main__":
    measure() if sys.argv[1:] == ["pe"] else main()
