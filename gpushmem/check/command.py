"""`gpushmem run --check`: record a job, then report what is wrong with it."""

from __future__ import annotations

import fcntl
import gc
import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gpushmem import settings
from gpushmem.check import bounds, log, order, races, report, sarif
from gpushmem.check.known import Known
from gpushmem.job.pes import compact

__all__ = ["EXIT_CODE", "Known", "findings", "recorded"]

EXIT_CODE = 66  # of a job in which something was found
PREFIX, NEW = "gpushmem-check-", 60  # of the folders; seconds


@contextmanager
def recorded() -> Iterator[Path]:
    """Let the PEs that are started inside be recorded; gives the folder of their logs."""
    _remove_old()
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    settings.put("GPUSHMEM_CHECK", folder)
    settings.put("GPUSHMEM_THREADS", 1)  # the parts of a launch take turns
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _remove_old() -> None:
    """Remove the logs of jobs whose launchers were killed: nobody holds their lock any more."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):  # another user's, or gone by now
            if time.time() - folder.stat().st_mtime < NEW:  # it may not have been locked yet
                continue
            with open(folder / "lock", "r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)


def findings(folder: Path, form: str, known: Known) -> tuple[int, str, list[str]]:
    """How many problems there are, the report, and what else is to be said."""
    traces = list(log.read(folder))
    gc.disable()  # what is made here is kept: looking for garbage would take a third of the time
    try:
        history = order.history(traces)
    finally:
        gc.enable()
    every = report.problems(history, races.races(history), bounds.outside(history))
    found, said = known.split(history, every)
    full = [trace.pe for trace in traces if trace.lost]
    if full:
        said.append(
            f"not all was checked: the log of {compact(full)} was full after {log.MOST} records; "
            "check a smaller problem, or fewer steps"
        )
    if form == "text":
        return len(found), report.text_of(found), said
    data = [problem.data() for problem in found]
    made = sarif.log_of(history, found) if form == "sarif" else data
    return len(found), json.dumps(made, indent=1), said
