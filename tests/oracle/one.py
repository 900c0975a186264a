"""Run numba-cuda's own test modules and write the outcomes as JSON lines.

Usage: python -m tests.oracle.one [MODULE [TEST ...]], on the engine, or on Numba's CUDA simulator
if NUMBA_ENABLE_CUDASIM=1. Without a module, forks a process for each that is named on standard
input, with Numba loaded: a line is a JSON list of the module, the files for its output and its
errors, and the most seconds it may run. The answer to a line is the exit code. If GPUSHMEM_CHECK is
set, what the module does is recorded, in the folder of its output.
"""

import json
import os
import signal
import sys
import time
import unittest
import warnings
from pathlib import Path

ENGINE = os.environ.get("NUMBA_ENABLE_CUDASIM") != "1"
WRITE = os.O_WRONLY | os.O_CREAT


class Outcomes(unittest.TestResult):
    """Writes a line for each test when it starts and when it ends."""

    def __init__(self, out, recorder=None):
        super().__init__()
        self.out, self.recorder = out, recorder

    def note(self, test, outcome, detail=""):
        self.noted = outcome
        line = {"test": test.id(), "outcome": outcome, "detail": detail[-3000:]}
        if self.recorder is not None:
            line["launches"] = self.recorder.launches  # before it
        print(json.dumps(line), file=self.out, flush=True)

    def startTest(self, test):
        super().startTest(test)
        self.failed_subtests = []
        self.began = time.time()
        self.note(test, "started")

    def stopTest(self, test):
        if self.noted == "started":  # a test with failed subtests has no outcome of its own
            self.note(test, "failed", "\n".join(self.failed_subtests))

    def addSuccess(self, test):
        self.note(test, "passed", f"{time.time() - self.began:.2f}")

    def addFailure(self, test, err):
        self.note(test, "failed", self._exc_info_to_string(err, test))

    def addError(self, test, err):
        self.note(test, "failed", self._exc_info_to_string(err, test))

    def addSkip(self, test, reason):
        self.note(test, "skipped", reason)

    def addExpectedFailure(self, test, err):
        self.note(test, "passed", "expected failure")

    def addUnexpectedSuccess(self, test):
        self.note(test, "passed", "unexpected success")

    def addSubTest(self, test, subtest, err):
        if err is not None:
            self.failed_subtests.append(self._exc_info_to_string(err, test))


def load():
    """Load what every module needs, before any process is forked."""
    warnings.simplefilter("ignore")
    if ENGINE:
        site = str(Path(__file__).parent / "site")
        os.environ.update(GPUSHMEM_ORACLE="engine", PYTHONPATH=site)
        sys.path.insert(0, site)
        from gpushmem.start.launch import local

        local.preload("cpu")
        import gpushmem.simt.numba_cuda  # noqa: F401
    import numba.cuda  # noqa: F401


def run(module, *names):
    """Run the tests, and end the process: whatever a broken test left running goes with it."""
    out = os.fdopen(os.dup(1), "w")  # tests redirect and capture sys.stdout
    if ENGINE:
        import oracle_site

        oracle_site.enter()
    loader = unittest.TestLoader()
    suite = loader.loadTestsFromNames([f"{module}.{name}" for name in names] or [module])
    recorder = witness_of_this() if ENGINE else None
    if recorder is not None:
        suite = checkable(suite)
    suite.run(Outcomes(out, recorder))
    if recorder is not None:
        recorder.end()
    out.flush()
    os._exit(0)


def checkable(suite):
    """The tests of a suite that can be checked."""
    from tests.oracle.problems import left_out

    if not isinstance(suite, unittest.TestSuite):
        return unittest.TestSuite([] if left_out(suite.id()) else [suite])
    return unittest.TestSuite([checkable(part) for part in suite])


def witness_of_this():
    """Who records what this process does, if it is checked."""
    from gpushmem.simt.run import queue_observer

    return queue_observer.present()


def serve():
    """Run each module named on standard input in a fork of this process."""
    for line in sys.stdin:
        module, out, err, seconds = json.loads(line)
        pid = os.fork()
        if pid == 0:
            for fd, path, flags in ((0, os.devnull, os.O_RDONLY), (1, out, WRITE), (2, err, WRITE)):
                os.dup2(os.open(path, flags), fd)
            signal.alarm(seconds)
            if "GPUSHMEM_CHECK" in os.environ:
                os.environ["GPUSHMEM_CHECK"] = str(Path(out).parent)
            run(module)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


if __name__ == "__main__":
    load()
    run(*sys.argv[1:]) if sys.argv[1:] else serve()
