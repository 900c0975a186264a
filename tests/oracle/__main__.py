"""Run numba-cuda's own tests, on the engine or on Numba's CUDA simulator, and count.

Usage: python -m tests.oracle [--simulator] [--save FILE] [PATTERN ...]

Every module of `numba.cuda.tests.cudapy` and `.doc_examples` whose name contains a PATTERN runs in
a process of its own (`one`). Exit code 1 if an applicable test fails; see `applicability`.
"""

import argparse
import json
import os
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numba.cuda

from tests.oracle.applicability import why_not

ROOT = Path(__file__).parent.parent.parent
TESTS = Path(numba.cuda.__file__).parent / "tests"
PACKAGES = ("cudapy", "doc_examples")
TIMEOUT = 900  # seconds for one module


def modules(patterns=()):
    """The test modules, as `cudapy.test_atomics`."""
    names = [
        ".".join(path.relative_to(TESTS).with_suffix("").parts)
        for package in PACKAGES
        for path in sorted((TESTS / package).rglob("test_*.py"))
    ]
    return [n for n in names if not patterns or any(p in n for p in patterns)]


def run_module(name, simulator=False):
    """Outcomes of a module's tests: {test: (outcome, detail)}."""
    env = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1" if simulator else "0"}
    command = [sys.executable, "-W", "ignore", "-m", "tests.oracle.one", f"numba.cuda.tests.{name}"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", env=env, cwd=ROOT,
            timeout=TIMEOUT, check=False,
        )  # fmt: skip
        out, err, code = done.stdout, done.stderr, done.returncode
    except subprocess.TimeoutExpired as late:
        out, err, code = (late.stdout or b"").decode(errors="replace"), "timeout", -1
    outcomes = {}
    for line in out.splitlines():
        if line.startswith('{"test"'):
            entry = json.loads(line)
            test = entry["test"].removeprefix("numba.cuda.tests.")
            outcomes[test] = entry["outcome"], entry["detail"]
    for test, (outcome, _) in outcomes.items():
        if outcome == "started":
            outcomes[test] = "failed", f"the process ended with {code}\n{err[-2000:]}"
    if not outcomes and code != 0:
        outcomes[name] = "failed", f"the module did not run\n{err[-2000:]}"
    return outcomes


def judge(outcomes, simulator=False):
    """Sort outcomes into passed, failed, skipped and not applicable: {test: (verdict, why)}."""
    verdicts = {}
    for test, (outcome, detail) in outcomes.items():
        reason = None if simulator else why_not(test)
        if outcome == "passed" or reason is None:
            verdicts[test] = outcome, detail
        else:
            verdicts[test] = "not applicable", reason
    return verdicts


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--simulator", action="store_true", help="on Numba's CUDA simulator")
    parser.add_argument("--save", type=Path, help="write counts and verdicts as JSON")
    parser.add_argument("patterns", nargs="*")
    args = parser.parse_args()
    verdicts = {}
    names = modules(args.patterns)
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for name, outcomes in zip(
            names, pool.map(lambda n: run_module(n, args.simulator), names), strict=True
        ):
            judged = judge(outcomes, args.simulator)
            verdicts |= judged
            print(name, dict(Counter(v for v, _ in judged.values())), flush=True)
    counts = dict(sorted(Counter(v for v, _ in verdicts.values()).items()))
    failed = {test: why for test, (verdict, why) in verdicts.items() if verdict == "failed"}
    for test, why in failed.items():
        print(f"\nFAILED {test}\n{why[-1500:]}")
    print(f"\n{sum(counts.values())} tests: {counts}")
    if args.save:
        reasons = Counter(why for v, why in verdicts.values() if v == "not applicable")
        result = {
            "on": "simulator" if args.simulator else "engine", "numba-cuda": numba_cuda_version(),
            "counts": counts, "not applicable": dict(reasons.most_common()),
            "failed": sorted(failed),
        }  # fmt: skip
        args.save.write_text(json.dumps(result, indent=1) + "\n")
    return 1 if failed else 0


def numba_cuda_version():
    from importlib.metadata import version

    return version("numba-cuda")


if __name__ == "__main__":
    sys.exit(main())
