"""Compile time of kernels that wait, in lockstep and on fibers: `python bench/compile_time.py`.

The first call of a plan on 2 PEs, each in a new process that finds the operations in the store, as
a user's second kernel does, but not the kernel: Numba's part, LLVM's, and the call. On fibers it is
what kernels took before they ran in lockstep. Each process compiles what it launches, for itself.
"""

import importlib
import os
import tempfile
import time

from harness import report, row
from threads import FAMILIES

import gpushmem as shmem
from gpushmem.simt.grid import entry, kernel_cache
from gpushmem.simt.run.kernel import Kernel

TURNS = 3  # of which the best counts
HOW = {"in lockstep": True, "on fibers": False}


def first_call(name, which, lockstep):
    """Seconds that the first call of a case's plan takes, and the next."""
    own = Kernel._options
    Kernel._options = lambda self, block: own(self, block if lockstep else entry.ONE)
    kernel_cache.compiled = lambda function, argtypes, options, build, tier: build()
    family = importlib.import_module(name)
    shmem.init(heap_size="2G")
    _, call = family.fused(family.CASES[which])
    took = []
    for _ in range(2):
        shmem.barrier_all()
        began = time.perf_counter()
        call()
        shmem.synchronize()
        took.append(time.perf_counter() - began)
    shmem.finalize()
    return took


def rows():
    for name in FAMILIES:
        family = importlib.import_module(name)
        for which in sorted({0, len(family.CASES) - 1}):
            best = dict.fromkeys(HOW, float("inf"))
            for turn in range(TURNS + 1):
                for how, lockstep in HOW.items():
                    first, second = shmem.spawn(first_call, 2, (name, which, lockstep))[0]
                    if turn:  # the first turn puts the operations into the store
                        best[how] = min(best[how], first - second)
            ours, fibers = best.values()
            what = f"{family.NAME.partition(':')[0]}, {family.label(family.CASES[which])}"
            yield row(what, ours, "on fibers", fibers, "<= 1.2", ours / fibers)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.environ["GPUSHMEM_CACHE_DIR"] = folder
        report("compile-time", rows())
