"""What a program of numba.cuda pays for small launches and copies, beside an earlier commit.

python bench/sim_launches.py COMMIT

Both are measured in turns, each time in a process of its own; the best of all turns counts.
stumpy 1.14.1 has to be there for the last row.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
from harness import report, row

TURNS = 3
ROOT = Path(__file__).parents[1]
IN_A_ROW = 100


# --- in a process of its own


def measure():
    """Seconds by what was measured."""
    from gpushmem.simt.numba_cuda import patch_numba_cuda

    with patch_numba_cuda():
        return dict(cases())


def best(call, times=1, rounds=30):
    """Seconds that one of `times` calls takes, the last thing before a synchronisation."""
    from numba import cuda

    least = float("inf")
    for _ in range(rounds):
        began = time.perf_counter()
        for _ in range(times):
            call()
        cuda.synchronize()
        least = min(least, time.perf_counter() - began)
    return least / times


def cases():
    from numba import cuda

    @cuda.jit
    def empty():
        pass

    @cuda.jit
    def add(out, a, b):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = a[i] + b[i]

    names = ", ".join(f"a{k}" for k in range(26))
    scope = {}
    exec(f"def many({names}): pass", scope)
    arrays = "f8[:], " * 18
    many = cuda.jit(scope["many"])
    declared = cuda.jit(f"void({arrays}{', '.join(['i8'] * 8)})")(scope["many"])

    host = np.zeros(1024)
    x, y, z = (cuda.to_device(host) for _ in range(3))
    stream = cuda.stream()
    wide = [cuda.to_device(host) for _ in range(18)] + list(range(8))
    yield "empty launch and synchronize", best(lambda: empty[4, 256]())
    yield "empty launch, of 100 in a row", best(lambda: empty[4, 256](), IN_A_ROW)
    yield "the same, on a stream", best(lambda: empty[4, 256, stream](), IN_A_ROW)
    yield "3 device arrays of 1,024", best(lambda: add[4, 256](x, y, z), IN_A_ROW)
    yield "18 device arrays, 8 integers", best(lambda: many[4, 256](*wide), IN_A_ROW)
    yield "the same, of a declared signature", best(lambda: declared[4, 256](*wide), IN_A_ROW)
    yield "3 host arrays, copied both ways", best(lambda: add[4, 256](host, host, host))
    yield "to_device of 8 KB", best(lambda: cuda.to_device(host), IN_A_ROW)
    yield "copy_to_host of 8 KB", best(lambda: x.copy_to_host(host), IN_A_ROW)
    yield "a slice of a device array", best(lambda: x[10:100], IN_A_ROW)
    yield "x[5] = 1.0", best(lambda: x.__setitem__(5, 1.0))

    import stumpy

    series = np.random.default_rng(1).random(3000)
    yield "stumpy.gpu_stump of 3,000 points", best(lambda: stumpy.gpu_stump(series, 50), 1, 4)


# --- in turns


def measured_by(source, cache):
    """What the sources in a folder measure."""
    env = {**os.environ, "PYTHONPATH": str(source), "GPUSHMEM_CACHE_DIR": cache}
    command = [sys.executable, "-W", "ignore", __file__, "--measure"]
    done = subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE)
    return json.loads(done.stdout)


def rows(commit):
    with tempfile.TemporaryDirectory() as folder:
        before = Path(folder, "before")
        worktree = ["git", "-C", ROOT, "worktree"]
        subprocess.run([*worktree, "add", "--detach", before, commit], check=True)
        try:
            results = {ROOT: [], before: []}
            for _ in range(TURNS):
                for source, kept in results.items():
                    kept.append(measured_by(source, folder))
        finally:
            subprocess.run([*worktree, "remove", "--force", before], check=True)
    for what in results[ROOT][0]:
        ours, peer = (min(each[what] for each in kept) for kept in results.values())
        yield row(what, ours, "before", peer, AIMS.get(what, ""), peer / ours)


AIMS = {"stumpy.gpu_stump of 3,000 points": "<= 0.2 s"}

if __name__ == "__main__":
    if sys.argv[1] == "--measure":
        warnings.simplefilter("ignore")
        print(json.dumps(measure()))
    else:
        report("sim-launches", rows(sys.argv[1]))
