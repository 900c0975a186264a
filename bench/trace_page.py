"""The page of a trace of a million events and 64 PEs: `python bench/trace_page.py`.

The events are those of a real job of 2 PEs, again and again, on 32 pairs of PEs. Times are those of
Chromium without a window: from opening the page until it can be used, and to draw it, whole and
zoomed in, with all PEs closed and open. It needs Chromium and playwright.
"""

import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from harness import report, row
from playwright.sync_api import sync_playwright

from gpushmem.trace import load, page
from gpushmem.trace.reading import Trace

EVENTS, PAIRS = 1_000_000, 32
OPENED, ZOOMS = 5, 20

JOB = """
import gpushmem as shmem
from numba import cuda

@shmem.jit
def exchange(dst, src, signal, rounds):
    other = shmem.my_pe() ^ 1
    for k in range(1, rounds + 1):
        shmem.put_signal_block(dst, src, signal[cuda.blockIdx.x :], k, shmem.SIGNAL_SET, other)
        shmem.signal_wait_until(signal[cuda.blockIdx.x :], shmem.CMP_GE, k)
        cuda.syncthreads()

shmem.init(heap_size="16M")
src, dst = shmem.ones(1000), shmem.zeros(1000)
signal = shmem.zeros(4, dtype="uint64")
exchange[4, 32](dst, src, signal, 200)
shmem.finalize()
"""


def recorded(folder):
    script = Path(folder, "job.py")
    script.write_text(JOB)
    run = [sys.executable, "-m", "gpushmem", "run", "--backend", "cpu", "--trace", folder]
    subprocess.run([*run, "-n", "2", script], check=True)
    return load(folder)


def repeated(trace):
    """A trace of EVENTS events: copies of one, by pairs of PEs and one after the other."""
    of_pe = np.bincount(trace.events["of"])
    copies = -(-EVENTS // len(trace.events))
    parts = []
    for k in range(copies):
        part, pair, turn = trace.events.copy(), k % PAIRS, k // PAIRS
        for name in ("began", "ended"):
            part[name] += turn * (trace.end + 1000)
        part["of"] += 2 * pair
        part["pe"] = np.where(part["pe"] >= 0, part["pe"] + 2 * pair, -1)
        for name in ("number", "launch"):
            part[name] = np.where(part[name] > 0, part[name] + turn * of_pe.max(), 0)
        parts.append(part)
    events = np.concatenate(parts)[:EVENTS]
    events = events[np.argsort(events["began"], kind="stable")]
    facts = {pe: trace.facts[pe % 2] for pe in range(2 * PAIRS)}
    return Trace(events, 2 * PAIRS, {}, facts, int(events["ended"].max()))


def frame(tab, action):
    """Milliseconds from an action to the end of the drawing that it asks for."""
    return tab.evaluate(
        """(action) => {
            const t = trace.timeline, began = performance.now();
            new Function("t", action)(t);
            t.paint();
            return performance.now() - began;
        }""",
        action,
    )


def rows():
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as started:
        trace, path = repeated(recorded(folder)), Path(folder, "trace.html")
        began = time.perf_counter()
        page.write(trace, path)
        wrote = time.perf_counter() - began
        yield row("1 million events, 64 PEs: writing the page", wrote, "", None, "", None)
        browser = started.chromium.launch(executable_path=shutil.which("chromium"))
        opened = []
        for _ in range(OPENED):
            tab = browser.new_page(viewport={"width": 1600, "height": 1000})
            began = time.perf_counter()
            tab.goto(path.as_uri())
            tab.wait_for_selector("body[data-ready]")
            opened.append(time.perf_counter() - began)
        yield row("opening it", statistics.median(opened), "", None, "<= 3 s", None)
        for state, many in (("closed", "false"), ("open", "true")):
            tab.evaluate(f"trace.timeline.expand({many})")
            tab.evaluate("trace.timeline.whole()")
            took = [frame(tab, "t.zoom(0.7)") for _ in range(ZOOMS)]
            yield row(f"a step of zoom, PEs {state}", max(took) / 1e3, "", None, "<= 50 ms", None)
        took = frame(tab, "t.whole()") / 1e3
        yield row("the whole job, PEs open", took, "", None, "<= 50 ms", None)


if __name__ == "__main__":
    report("trace-page", rows())
