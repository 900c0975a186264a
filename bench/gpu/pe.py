"""What a PE measures, and writes as lines of JSON; PE 0 does, the others are what it writes to.

A measurement that fails is told on stderr, and the next one begins; the exit status is then 1.

python -m gpushmem run --backend nvshmem -n N bench/gpu/pe.py FOLDER WHAT... [OPTIONS]

FOLDER has the kernels (prepare.py). WHAT: ops, ping-pong (all PEs wait in kernels: one PE, or
several with MPS), copy, launch. OPTIONS: --rehearse, --short, --host, as of __main__.py.
"""

import sys
import time
import traceback
from functools import partial
from pathlib import Path

from side import Measuring

import gpushmem as shmem

FOLDER = Path(sys.argv[1])  # where GPUSHMEM_CACHE_DIR is, too
REHEARSE, SHORT, HOST = (f"--{name}" in sys.argv for name in ("rehearse", "short", "host"))
KiB, MiB = 1 << 10, 1 << 20
LARGEST = 64 * KiB if REHEARSE or HOST else 16 * MiB if SHORT else 256 * MiB
ROUNDS = 3 if REHEARSE else 7 if SHORT else 15
ENOUGH = 2e-3  # seconds that a kernel runs at least
MOST = {"": 256 * KiB, "_warp": 16 * MiB, "_block": 256 * MiB}  # bytes for a thread, a warp, ...
SIZES = (8, 1 * MiB) if SHORT else (8, 64, 512, *(4 * KiB * 8**k for k in range(6)), 256 * MiB)
COPIES = (1 * MiB, 16 * MiB) if SHORT else (64 * KiB, 1 * MiB, 16 * MiB, 64 * MiB, 256 * MiB)
GRIDS = (16, 64, 128, 256, 512)
ONE = 8  # bytes
PINGS = 20 if REHEARSE else 2000
BYTES_OF_HEAP = 2 * LARGEST + 4 * MiB


def ops(m):
    """Operations of a thread, a warp and a block, in loops in a kernel."""
    for name in ("p", "g", "atomic_add", "atomic_fetch_add"):
        yield partial(m.compare, name, ONE)
    for scope, most in MOST.items():
        yield partial(m.compare, f"put{scope} and quiet", ONE)
        for verb in ("put", "get"):
            for nbytes in (n for n in SIZES if n <= min(most, LARGEST)):
                yield partial(m.compare_copies, verb, f"{verb}{scope}", nbytes)


def ping_pong(m):
    """Signals to and fro between PE 0 and PE 1; all take part, so the repetitions are fixed."""
    yield partial(m.ping_pong, PINGS)


def copy(m):
    """Blocks that each put their part, beside the GPU's own copy of the same bytes."""
    for nbytes in COPIES:
        if nbytes <= LARGEST:
            times = 2 if REHEARSE else max(5, min(50, (1 << 30) // nbytes))
            yield partial(m.copy, nbytes, GRIDS, times)


def launch(m):
    """What a launch costs the host."""
    yield partial(m.launch, 5 if REHEARSE else 3000 if HOST else 300)


WHAT = {"ops": ops, "ping-pong": ping_pong, "copy": copy, "launch": launch}
TOGETHER = ("ping-pong",)


def measure(what, m):
    """All of `what`; False if a part failed."""
    began, failed = time.perf_counter(), 0
    for work in WHAT[what](m):
        try:
            work()
        except Exception:
            traceback.print_exc()
            failed += 1
            print(f"{what}: failed: {work.func.__name__}{work.args}", file=sys.stderr, flush=True)
            if not m.alive():
                break
    if m.me == 0:
        print(f"{what}: {time.perf_counter() - began:.1f} s", file=sys.stderr, flush=True)
    return not failed


def main():
    asked = [a for a in sys.argv[2:] if not a.startswith("-")]
    shmem.init(heap_size=BYTES_OF_HEAP)
    m = Measuring(FOLDER, LARGEST, ROUNDS, ENOUGH, REHEARSE)
    mine = [what for what in asked if m.me == 0 or (what in TOGETHER and m.me == 1)]
    failed = [what for what in mine if not measure(what, m)]
    m.end()
    shmem.finalize()
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
