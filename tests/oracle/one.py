"""Run one of numba-cuda's own test modules and print the outcomes as JSON lines.

Usage: python -m tests.oracle.one MODULE [TEST ...], on the engine, or on Numba's CUDA simulator if
NUMBA_ENABLE_CUDASIM=1.
"""

import json
import os
import sys
import time
import unittest
import warnings
from pathlib import Path


class Outcomes(unittest.TestResult):
    """Writes a line for each test when it starts and when it ends."""

    def __init__(self, out):
        super().__init__()
        self.out = out

    def note(self, test, outcome, detail=""):
        self.noted = outcome
        line = {"test": test.id(), "outcome": outcome, "detail": detail[-3000:]}
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


def main(module, *names):
    warnings.simplefilter("ignore")
    out = os.fdopen(os.dup(1), "w")  # tests redirect and capture sys.stdout
    if os.environ.get("NUMBA_ENABLE_CUDASIM") != "1":
        site = str(Path(__file__).parent / "site")
        os.environ.update(GPUSHMEM_ORACLE="engine", PYTHONPATH=site)
        sys.path.insert(0, site)
        import oracle_site

        oracle_site.enter()
    loader = unittest.TestLoader()
    suite = loader.loadTestsFromNames([f"{module}.{name}" for name in names] or [module])
    suite.run(Outcomes(out))
    out.flush()
    os._exit(0)  # what a broken test left running must not keep the process


if __name__ == "__main__":
    main(*sys.argv[1:])
