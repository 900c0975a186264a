"""What a trace costs: `python bench/trace.py`.

Plans of gpushmem.kernels on 2 PEs, with and without GPUSHMEM_TRACE, in turns of new processes; and
one event of a kernel's, from calls that are made a million times.
"""

import os
import tempfile
import time

import numpy as np
from harness import row, slowdowns
from threads import cases_of, length, series

import gpushmem as shmem
from gpushmem.progress import progress

TURNS, SERIES = 3, 5  # of processes; of calls in each
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


def both(body, n_pes):
    """(what, seconds with a trace, without)."""
    traced, plain = {}, {}
    with progress(f"jobs: {body.__name__}", 2 * TURNS) as bar:
        for with_trace in bar.each([False, True] * TURNS, {False: "plain", True: "traced"}.get):
            best = traced if with_trace else plain
            with tempfile.TemporaryDirectory() as folder:
                os.environ["GPUSHMEM_TRACE"] = folder if with_trace else ""
                for what, seconds in shmem.spawn(body, n_pes)[0].items():
                    best[what] = min(best.get(what, np.inf), seconds)
    return [(what, traced[what], plain[what]) for what in plain]


if __name__ == "__main__":
    of_calls = both(calls, 1)
    one = [
        row(
            f"one event, of {what}",
            (ours - peer) / CALLS,
            "the call",
            peer / CALLS,
            "<= 50 ns",
            None,
        )
        for what, ours, peer in of_calls
    ]
    slowdowns("trace", "without", "<= 1.03, 1.15", both(plans, 2), more=one)
