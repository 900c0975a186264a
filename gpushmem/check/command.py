"""`gpushmem run --check`: record a job, then report what is wrong with it."""

from __future__ import annotations

import fcntl
import gc
import json
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from gpushmem import settings
from gpushmem.check import (
    bounds,
    happens_before,
    log,
    lost_wakeups,
    races,
    report,
    sarif,
    uninitialized,
)
from gpushmem.check.history import Earlier, History
from gpushmem.check.parts import Parts, followed
from gpushmem.check.suppressions import Known
from gpushmem.progress import progress

__all__ = ["EXIT_CODE", "Findings", "Known", "Seen", "When", "problems", "recorded", "run_often"]

EXIT_CODE = 66  # of a job in which something was found
PREFIX, NEW = "gpushmem-check-", 60  # of the folders; seconds
LONG = 1.0  # seconds of analysis, from which on it is shown how far it has come
LOCK = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


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


def run_often(run: Callable[[], int], runs: int, seed: int | None, found: Findings) -> int:
    """Run a job, recorded, and add what is found; returns the exit code of the last run.

    Several runs have different seeds. The one that fails is the last.
    """
    code = 0
    for k in range(runs):
        seeds = {"GPUSHMEM_SEED": (seed or 0) + k} if runs > 1 or seed is not None else {}
        with recorded() as folder, settings.putting(**seeds):
            with followed(folder, found.add_part) as parts:
                code = run()
            found.add_parts(parts)
        if code:
            break
    return code


def _remove_old() -> None:
    """Remove the logs of jobs whose launchers were killed: nobody holds their lock any more.

    The folder they are in is other users', too: only what is ours alone is touched.
    """
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):  # gone by now, or in use
            status = folder.lstat()
            ours = status.st_uid == os.geteuid() and status.st_mode & 0o077 == 0
            recent = time.time() - status.st_mtime < NEW  # it may not have been locked yet
            if not (ours and stat.S_ISDIR(status.st_mode)) or recent:
                continue
            with open(os.open(folder / "lock", LOCK), "r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)


# What is kept of a problem, by the form of the report.
FORMS: dict[str, Callable[[History, report.Problem], Any]] = {
    "text": lambda _, problem: report.counted(problem.text(), problem.seen),
    "json": lambda _, problem: problem.data(),
    "sarif": sarif.result,
}


# The same with another number of how often it is there.
COUNTED: dict[str, Callable[[Any, int], Any]] = {
    "text": report.counted,
    "json": lambda made, count: made | {"count": count},
    "sarif": lambda made, _: made,
}
# In the order in which `report.problems` takes what they find, after the races.
SEARCHES: tuple[Callable[[History], Any], ...] = (
    lost_wakeups.missed, lost_wakeups.confused, lost_wakeups.not_resident, bounds.outside,
    uninitialized.unwritten,
)  # fmt: skip


def problems(
    traces: list[log.Trace], exact: bool = False, earlier: Earlier | None = None
) -> tuple[History, list[report.Problem]]:
    """What is wrong with a job, or a part of it, that was recorded; see `History`."""
    began, operations = time.monotonic(), races.Operations()
    gc.disable()  # what is made is kept: looking for garbage would take a third of the time
    try:
        history = happens_before.history(traces, exact, operations, earlier)
    finally:
        gc.enable()
    searches: tuple[Callable[[History], Any], ...] = (
        partial(races.races, operations=operations), *SEARCHES,
    )  # fmt: skip
    long = time.monotonic() - began > LONG
    with progress("checking: kinds of problems", len(searches), shown=long) as bar:
        found = [search(history) for search in bar.each(searches)]
    return history, report.problems(history, *found)


class Seen(NamedTuple):
    """What has been found in one run."""

    problems: dict[Any, Any]  # by their keys, as the form has them
    counts: dict[Any, int]  # how often each is there
    unchecked: list[str]
    known: Known


class When(NamedTuple):
    """Which runs show a problem, for people and for programs."""

    text: str
    data: dict[str, Any]


class Findings:
    """What has been found in a job, or in several runs of it; `form` is that of the report."""

    options = "--"  # how the names of options begin, in what is said

    def __init__(self, known: Known, form: str = "text") -> None:
        self._known, self._form = known, form
        self._found: dict[Any, Any] = {}
        self._said: list[str] = []
        self.schedules: dict[str, Any] | None = None  # for programs: those that were run
        self.unchecked: list[str] = []  # what is to be said of what could not be checked
        self._counts: dict[Any, int] = {}  # how often problems of this run are there
        self._part: History | None = None  # the last one of the run whose parts are added

    def add(self, folder: Path) -> None:
        """Analyse the logs in a folder."""
        self.add_parts(Parts(folder))

    def add_parts(self, parts: Iterable[list[log.Trace]]) -> None:
        """Analyse what is left of a run."""
        for traces in parts:
            self.add_part(traces)
        self._part = None

    def add_part(self, traces: list[log.Trace]) -> None:
        """Analyse the next part of a run."""
        earlier = self._part.earlier() if self._part is not None else None
        if earlier is not None:  # its memory is needed for the next one, which is as large
            self._part = None
            gc.collect()
        self._part, seen = self.see(traces, earlier=earlier)
        if earlier is None:
            self._counts = {}
        for key, count in seen.counts.items():
            self._counts[key] = self._counts.get(key, 0) + count
        self.take(seen)
        for key in seen.problems:
            self._found[key] = COUNTED[self._form](self._found[key], self._counts[key])

    def see(
        self, traces: list[log.Trace], exact: bool = False, earlier: Earlier | None = None
    ) -> tuple[History, Seen]:
        """Analyse the logs of a run, or of a part of it; see `History`."""
        history, found = problems(traces, exact, earlier)
        form = FORMS[self._form]
        kept = list(self._known.without(history, found))
        new = {p.key(): form(history, p) for p in kept}
        counts = {p.key(): p.seen for p in kept}
        return history, Seen(new, counts, _unchecked(history, traces), self._known)

    def take(self, seen: Seen, when: Callable[[], When] | None = None) -> None:
        """Take what has been found in a run; `when` says which runs show it, if not all do."""
        for key, made in seen.problems.items():
            if key not in self._found:
                self._found[key] = made if when is None else self._with(made, when())
        self.unchecked = seen.unchecked or self.unchecked
        self._known.join(seen.known)

    def _with(self, made: Any, when: When) -> Any:
        """A problem that is there in some runs only."""
        if self._form == "text":
            return f"{made}  {when.text}\n"
        return made | ({"properties": when.data} if self._form == "sarif" else when.data)

    def remark(self, said: list[str]) -> None:
        """Let `remarks` begin with this."""
        self._said = said

    def keys(self) -> set[Any]:
        """Their kinds, lines and accesses."""
        return {*self._found}

    @property
    def problems(self) -> int:
        """How many there are."""
        return len(self._found)

    def text(self) -> str:
        """The report."""
        found = [*self._found.values()]
        if self._form == "text":
            return report.text_of(found)
        if self._form == "sarif":
            return json.dumps(sarif.log_of(found), indent=1)
        data = found if self.schedules is None else {"problems": found, "schedules": self.schedules}
        return json.dumps(data, indent=1)

    def remarks(self) -> list[str]:
        """What is to be said of known problems, of what could not be checked, and where to read."""
        page = ["causes and cures: gpushmem help check"] if self._found else []
        return self._said + self._known.remarks() + self.unchecked + page


def _unchecked(history: History, traces: list[log.Trace]) -> list[str]:
    said = []
    for trace in [each for each in traces if each.lost]:
        n = len(trace.records)
        disk = "the disk had no room for more: set TMPDIR to another, or " if trace.of_disk else ""
        said.append(
            f"not all was checked: the log of PE {trace.pe} was full {n} records after the PEs "
            f"had met; {disk}check a smaller problem, or let the hosts of all PEs wait for their "
            "kernels and meet, in barrier_all(), more often"
        )
    if history.passes:
        said.append(
            f"not all was checked: {history.passes} passes over the logs were too few to learn "
            "what waits order, so a problem that is reported may be none; check fewer steps"
        )
    return said
