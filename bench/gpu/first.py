"""From the start of a process to the end of its first kernel, in fresh processes, in turns."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from gpushmem.progress import progress

HERE = Path(__file__).parent
CASES = ("ours, warm cache", "ours, cold cache", "theirs")
PHASES = ("python", "import", "init", "kernel")


def took(case, cache):
    """Seconds from the process's start to each mark; and to its end."""
    with tempfile.TemporaryDirectory() as empty:
        folder = empty if "cold" in case else cache
        env = os.environ | {"GPUSHMEM_CACHE_DIR": str(folder), "GPUSHMEM_BACKEND": "nvshmem"}
        env |= {"NVSHMEM_SYMMETRIC_SIZE": "128M"}
        program = HERE / ("first_theirs.py" if case == "theirs" else "first_ours.py")
        began = time.time()
        done = subprocess.run(
            [sys.executable, program],
            check=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, env=env,
        )  # fmt: skip
        ended = time.time()
    said = dict(line.split() for line in done.stdout.splitlines() if line)
    return {name: float(said[name]) - began for name in PHASES} | {
        "end": ended - began, "arrived": said["arrived"] == "True"
    }  # fmt: skip


def measure(turns, rehearse, take):
    """Give `take` a line for each case, the median of all turns so far, after each turn."""
    with tempfile.TemporaryDirectory() as cache, progress("turns", turns) as bar:
        took("ours, warm cache", cache)
        results = {case: [] for case in CASES}
        for k in bar.each(range(turns)):
            for case in CASES[:: 1 - 2 * (k % 2)]:
                results[case].append(took(case, cache))
                if not rehearse and not results[case][-1]["arrived"]:
                    raise AssertionError(f"first: {case}: what the kernel sent has not arrived")
            for line in lines(results):
                take(line)


def lines(results):
    """Of the turns so far, a line for each case."""
    for case in CASES[:2]:
        pairs = zip(results[case], results["theirs"], strict=True)
        ratios = sorted(a["kernel"] / b["kernel"] for a, b in pairs)
        yield {
            "what": f"process start to first kernel done, {case}",
            "ours": median(r["kernel"] for r in results[case]),
            "theirs": median(r["kernel"] for r in results["theirs"]),
            "ratio": median(ratios), "from": ratios[0], "to": ratios[-1],
            "aim": "<= 0.5" if "warm" in case else "",
            "runs": {name: results[name] for name in (case, "theirs")},
        }  # fmt: skip
