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
from typing import NamedTuple

from gpushmem import settings
from gpushmem.check import bounds, log, order, races, report, sarif, unwritten
from gpushmem.check.known import Known
from gpushmem.job.pes import compact

__all__ = ["EXIT_CODE", "Findings", "Known", "findings", "recorded"]

EXIT_CODE = 66  # of a job in which something was found
PREFIX, NEW = "gpushmem-check-", 60  # of the folders; seconds


@contextmanager
def recorded() -> Iterator[Path]:
    """Let the PEs that are started inside be recorded; gives the folder of their logs."""
    _remove_old()
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            # Threads: the parts of a launch take turns.
            with settings.putting(GPUSHMEM_CHECK=folder, GPUSHMEM_THREADS=1):
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


class Findings(NamedTuple):
    """The result of a check."""

    problems: int
    text: str  # the report
    ignored: list[str]  # what is to be said of known problems
    unchecked: list[str]  # ... and of what could not be checked


def findings(folder: Path, form: str, known: Known) -> Findings:
    """Analyse the logs in a folder, and report in a form: `text`, `json` or `sarif`."""
    traces = list(log.read(folder))
    gc.disable()  # what is made here is kept: looking for garbage would take a third of the time
    try:
        history = order.history(traces)
    finally:
        gc.enable()
    every = report.problems(
        history, races.races(history), bounds.outside(history), unwritten.unwritten(history)
    )
    found, ignored = known.split(history, every)
    text = {
        "text": lambda: report.text_of(found),
        "json": lambda: json.dumps([problem.data() for problem in found], indent=1),
        "sarif": lambda: json.dumps(sarif.log_of(history, found), indent=1),
    }[form]()
    return Findings(len(found), text, ignored, _unchecked(traces))


def _unchecked(traces: list[log.Trace]) -> list[str]:
    full = [trace.pe for trace in traces if trace.lost]
    return [
        f"not all was checked: the log of {compact(full)} was full after {log.MOST} records; "
        "check a smaller problem, or fewer steps"
    ] * bool(full)
