"""pytest -p bench.gpu.live: each result in the file $RESULTS/live.txt as soon as it is known.

For machines that may be taken away: pytest writes its own report when all tests have ended.
"""

import os
from pathlib import Path

LONGEST = 3000  # characters of what a failed test says


def pytest_runtest_logreport(report):
    if hasattr(report, "node") or "PYTEST_XDIST_WORKER" not in os.environ:  # not in the workers
        ended = report.when == "call" or report.outcome != "passed"
        if not ended:
            return
        said = str(report.longrepr)[-LONGEST:] if report.outcome != "passed" else ""
        line = f"{report.outcome:8}{report.duration:6.1f} s  {report.nodeid}\n"
        with Path(os.environ["RESULTS"], "live.txt").open("a") as file:
            file.write(line + (f"{said}\n" if said else ""))
