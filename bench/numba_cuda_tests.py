"""Time of numba-cuda's own tests, and in another checkout: `bench/numba_cuda_tests.py CHECKOUT`.

The tests that pass in both, by module, on as many cores as there are; each tree has a store of its
own, empty at first. Modules that seem slower are run again in both, and the best time of each
test counts.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from harness import row, slowdowns

from gpushmem.progress import progress

HERE = Path(__file__).parent.parent
CODE = """
import json, os, sys
from tests.oracle.__main__ import Runners, judge, modules
names = sys.argv[1:] or modules()
with Runners(len(os.sched_getaffinity(0))) as runners:
    for name, future in [(name, runners.submit(name)) for name in names]:
        passed = {t: why for t, (v, why) in judge(future.result()).items() if v == "passed"}
        times = {t: float(why) for t, why in passed.items() if why.replace(".", "").isdigit()}
        print(json.dumps([name, times]), flush=True)
"""
AGAIN, SHORT = 2, 0.2  # runs of what seems slower; seconds: modules below are noise


def run(tree, store, names=()):
    """Module -> test -> seconds."""
    env = {**os.environ, "PYTHONPATH": str(tree), "GPUSHMEM_CACHE_DIR": store}
    command = [sys.executable, "-W", "ignore", "-c", CODE, *names]
    found = {}
    with (
        progress(f"modules in {tree}", len(names) or None) as bar,
        subprocess.Popen(command, cwd=tree, env=env, stdout=subprocess.PIPE, text=True) as process,
    ):
        for line in process.stdout:
            name, times = json.loads(line)
            found[name] = times
            bar.advance(1, name)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command[:4])
    return found


def seconds(ours, theirs):
    """Of the tests of a module that pass in both: in all, here and there."""
    both = ours.keys() & theirs.keys()
    return sum(ours[test] for test in both), sum(theirs[test] for test in both)


def merge(best, new):
    for name, times in new.items():
        for test, took in times.items():
            best[name][test] = min(took, best[name].get(test, took))


def main(other):
    with tempfile.TemporaryDirectory() as folder:
        trees = [(HERE, f"{folder}/ours"), (other, f"{folder}/theirs")]
        best = [run(*tree) for tree in trees]
        for _ in range(AGAIN):
            slower = []
            for name in best[0].keys() & best[1].keys():
                ours, theirs = seconds(best[0][name], best[1][name])
                if theirs >= SHORT and ours > 1.1 * theirs:
                    slower.append(name)
            for tree, found in zip(trees, best, strict=True):
                merge(found, run(*tree, slower) if slower else {})
    times = [
        (name, *seconds(best[0][name], best[1][name]))
        for name in best[0] if name in best[1]
    ]  # fmt: skip
    ours, theirs = (sum(column) for column in list(zip(*times, strict=True))[1:])
    long = [time for time in times if time[2] >= SHORT]
    slow = sum(mine > 1.1 * its for _, mine, its in long)
    more = [
        row("all", ours, "the other checkout", theirs, "<= 1.1", ours / theirs),
        row(f"modules slower by a tenth: {slow} of {len(long)}", None, "", None, "0", None),
    ]
    slowdowns("numba-cuda-tests", "the other checkout", "<= 1.1", long, more=more)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
