"""Run numba-cuda's own tests, on the engine or on Numba's CUDA simulator, and count.

Usage: python -m tests.oracle [--simulator | --check | --interpret] [--save FILE] [PATTERN ...]

Every module of `numba.cuda.tests.cudapy` and `.doc_examples` whose name contains a PATTERN runs in
a process of its own, forked by a `Runner`. Exit code 1 if an applicable test fails; see
`applicability`. With --check, a test fails in which the checker finds a problem that is not in
`problems`. With --interpret kernels run as plain Python, by default those of the modules in SAMPLE.
"""

import argparse
import bisect
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import numba.cuda

from gpushmem.check import log
from gpushmem.check.command import problems
from gpushmem.progress import progress
from tests.oracle.applicability import why_not
from tests.oracle.problems import why_wrong

ROOT = Path(__file__).parent.parent.parent
TESTS = Path(numba.cuda.__file__).parent / "tests"
PACKAGES = ("cudapy", "doc_examples")
TIMEOUT = 900  # seconds for one module
# For the interpreter, which takes too long for the others.
SAMPLE = (
    "cudapy.test_array_args", "cudapy.test_atomics", "cudapy.test_blackscholes",
    "cudapy.test_boolean", "cudapy.test_casting", "cudapy.test_cg", "cudapy.test_complex",
    "cudapy.test_const_string", "cudapy.test_constmem", "cudapy.test_cooperative_groups",
    "cudapy.test_device_func", "cudapy.test_enums", "cudapy.test_exception", "cudapy.test_forall",
    "cudapy.test_freevar", "cudapy.test_globals", "cudapy.test_gufunc_scalar", "cudapy.test_idiv",
    "cudapy.test_intrinsics", "cudapy.test_iterators", "cudapy.test_lang", "cudapy.test_localmem",
    "cudapy.test_math", "cudapy.test_minmax", "cudapy.test_nondet", "cudapy.test_operator",
    "cudapy.test_powi", "cudapy.test_py2_div_issue", "cudapy.test_record_dtype",
    "cudapy.test_reduction", "cudapy.test_retrieve_autoconverted_arrays",
    "cudapy.test_serialize", "cudapy.test_slicing", "cudapy.test_sm", "cudapy.test_sm_creation",
    "cudapy.test_sync", "cudapy.test_tuples", "cudapy.test_userexc", "cudapy.test_vector_type",
    "cudapy.test_vectorize_scalar_arg", "cudapy.test_warp_ops", "doc_examples.",
)  # fmt: skip


def modules(patterns=()):
    """The test modules, as `cudapy.test_atomics`."""
    names = [
        ".".join(path.relative_to(TESTS).with_suffix("").parts)
        for package in PACKAGES
        for path in sorted((TESTS / package).rglob("test_*.py"))
    ]
    return [n for n in names if not patterns or any(p in n for p in patterns)]


class Runner:
    """A process that has loaded Numba, and forks a process for each module (`one.serve`)."""

    def __init__(self, simulator=False, check=False, interpret=False):
        env = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1" if simulator else "0"}
        env["GPUSHMEM_SIM_INTERPRET"] = "1" if interpret else "0"
        self.check = check
        if check:  # the process of a module puts its own folder there
            env |= {"GPUSHMEM_CHECK": os.devnull, "GPUSHMEM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "tests.oracle.one"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env, cwd=ROOT,
        )  # fmt: skip

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.communicate()

    def run(self, name):
        """Outcomes of a module's tests: {test: (outcome, detail)}."""
        with tempfile.TemporaryDirectory() as folder:
            files = [Path(folder) / kind for kind in ("out", "err")]
            order = [f"numba.cuda.tests.{name}", *map(str, files), TIMEOUT]
            print(json.dumps(order), file=self.process.stdin, flush=True)
            answer = self.process.stdout.readline()
            assert answer, "the process that forks numba-cuda's tests has ended"
            out, err = (f.read_text(errors="replace") for f in files)
            outcomes = outcomes_of(name, int(answer), out, err)
            if self.check:
                note_problems(outcomes, out, Path(folder))
            return outcomes


class Runners:
    """Several runners, a thread for each."""

    def __init__(self, n, simulator=False, check=False, interpret=False):
        self.stack, self.own = ExitStack(), threading.local()

        def begin():
            self.own.runner = self.stack.enter_context(Runner(simulator, check, interpret))

        self.pool = ThreadPoolExecutor(n, initializer=begin)

    def submit(self, name):
        """A future of the outcomes of a module's tests."""
        return self.pool.submit(lambda: self.own.runner.run(name))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.pool.shutdown()
        self.stack.close()


def outcomes_of(name, code, out, err):
    """Read what a module's process wrote: {test: (outcome, detail)}."""
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


def note_problems(outcomes, out, folder):
    """Let tests fail in which the checker has found a problem that is not a known one."""
    first = {}  # the number of a test's first launch
    for line in out.splitlines():
        if line.startswith('{"test"'):
            entry = json.loads(line)
            test = entry["test"].removeprefix("numba.cuda.tests.")
            first.setdefault(test, entry["launches"])
    tests, starts = list(first), list(first.values())
    traces = list(log.read(folder))
    for problem in problems(traces)[1]:
        launch = max(access.launch for access, _ in problem.accesses)
        test = tests[bisect.bisect_left(starts, launch) - 1]
        if why_wrong(test, problem.text()) is None:
            before = outcomes[test][1] if outcomes[test][0] == "failed" else ""
            outcomes[test] = "failed", f"{before}\n{problem.text()}"
    if any(trace.lost for trace in traces):
        outcomes["checker"] = "failed", "the log was full"


def judge(outcomes, simulator=False, interpret=False):
    """Sort outcomes into passed, failed, skipped and not applicable: {test: (verdict, why)}."""
    verdicts = {}
    for test, (outcome, detail) in outcomes.items():
        reason = None if simulator else why_not(test, interpret)
        if outcome == "passed" or reason is None:
            verdicts[test] = outcome, detail
        else:
            verdicts[test] = "not applicable", reason
    return verdicts


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    on = parser.add_mutually_exclusive_group()
    on.add_argument("--simulator", action="store_true", help="on Numba's CUDA simulator")
    on.add_argument("--check", action="store_true", help="on the engine, with the checker")
    on.add_argument("--interpret", action="store_true", help="on the interpreter")
    parser.add_argument("--save", type=Path, help="write counts and verdicts as JSON")
    parser.add_argument("patterns", nargs="*")
    args = parser.parse_args()
    verdicts = {}
    names = modules(args.patterns or (SAMPLE if args.interpret else ()))
    n = len(os.sched_getaffinity(0))
    with (
        Runners(n, args.simulator, args.check, args.interpret) as runners,
        progress("modules", len(names)) as bar,
    ):
        futures = [(name, runners.submit(name)) for name in names]
        for name, future in bar.each(futures, lambda pair: pair[0]):
            judged = judge(future.result(), args.simulator, args.interpret)
            verdicts |= judged
            bar.print(name, dict(Counter(v for v, _ in judged.values())))
    counts = dict(sorted(Counter(v for v, _ in verdicts.values()).items()))
    failed = {test: why for test, (verdict, why) in verdicts.items() if verdict == "failed"}
    for test, why in failed.items():
        print(f"\nFAILED {test}\n{why[-1500:]}")
    print(f"\n{sum(counts.values())} tests: {counts}")
    if args.save:
        reasons = Counter(why for v, why in verdicts.values() if v == "not applicable")
        result = {
            "on": "simulator" if args.simulator else "interpreter" if args.interpret else "engine",
            "numba-cuda": numba_cuda_version(),
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
