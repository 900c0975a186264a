"""Plugin for pytest: the fixture `run_pes` runs functions in PEs; options say how to watch them.

pytest imports this module in every session, so it imports nothing heavy before a test uses it.
"""

from __future__ import annotations

import re
import secrets
import shlex
import sys
import warnings
from collections.abc import Callable, Generator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from gpushmem import settings
from gpushmem.errors import ArgumentError, PeerFailed, ShmemError

__all__ = ["n_pes", "run_pes"]

CHECK, PES = "gpushmem_check", "gpushmem_pes"  # marks
BUDGET = 60  # seconds
CHECKED_JOBS = "gpushmem_checked_jobs"  # property of a report
LONGEST = 150  # name of a folder
LINES = pytest.StashKey[list[str]]()  # what the report of a test says of its jobs
CHECKED = pytest.StashKey[int]()  # how many of its jobs were checked


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    add = parser.getgroup("gpushmem").addoption
    add(
        "--gpushmem-check",
        action="store_true",
        help="find races and missing synchronisation in what run_pes runs",
    )
    add(
        "--gpushmem-check-ignore", metavar="FILE", help="known problems that are not to be reported"
    )
    add(
        "--gpushmem-check-runs",
        choices=("all",),
        help="what is checked is run in every order of its operations on words",
    )
    add(
        "--gpushmem-check-budget",
        metavar="SECONDS",
        type=float,
        help=f"for so long, for each call of run_pes (default: {BUDGET})",
    )
    add("--gpushmem-check-schedule", metavar="NAME", help="once, in an order that was reported")
    add(
        "--gpushmem-memory",
        choices=("native", "weak"),
        help="weak: what run_pes runs performs operations as late, and in any order, as a GPU may",
    )
    add(
        "--gpushmem-seed",
        metavar="N",
        help="what is late, and in which order, with --gpushmem-memory weak, the same in all tests;"
        " who is first, with --gpushmem-check",
    )
    add(
        "--gpushmem-trace",
        metavar="DIR",
        help="record what the PEs of each test do, in a folder of DIR, for `gpushmem trace`",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marks, and refuse options that make no sense."""
    config.addinivalue_line(
        "markers",
        f"{CHECK}(on=True, runs=None, budget=None): whether the checker checks what run_pes runs "
        "in this test; runs='all': in every order, for at most `budget` seconds",
    )
    config.addinivalue_line(
        "markers", f"{PES}(*numbers): run this test once for each number of PEs (run_pes, n_pes)"
    )
    try:
        _check_options(config.getoption)
    except (ArgumentError, OSError) as error:
        raise pytest.UsageError(str(error)) from None


def _check_options(option: Callable[[str], Any]) -> None:
    known, seed, trace = map(option, ("gpushmem_check_ignore", "gpushmem_seed", "gpushmem_trace"))
    if known is not None and not Path(known).is_file():
        raise ArgumentError(f"--gpushmem-check-ignore: there is no file {known}")
    if seed is not None:
        try:
            settings.SETTINGS["GPUSHMEM_SEED"].read(seed)
        except ArgumentError as error:
            raise ArgumentError(f"--gpushmem-seed: {error}") from None
    if option("gpushmem_check") and option("gpushmem_memory") == "weak":
        raise ArgumentError(
            "--gpushmem-check sees every order that is allowed: leave --gpushmem-memory weak out"
        )
    if trace is not None:
        try:
            Path(trace).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ArgumentError(
                f"--gpushmem-trace: no folder can be made at {trace}: {error.strerror}"
            ) from None


def pytest_report_header() -> str | None:
    """Say that the CUDA simulator is on."""
    if not settings.get("GPUSHMEM_SIM"):
        return None
    return f"gpushmem: numba.cuda runs on the CPU, as {settings.get('GPUSHMEM_SIM_GPU')}"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Repeat a test for each number of PEs that its mark names."""
    mark = metafunc.definition.get_closest_marker(PES)
    if mark is None or "n_pes" not in metafunc.fixturenames:
        return
    good = [type(n) is int and 1 <= n <= settings.MOST for n in mark.args]
    if not good or not all(good) or mark.kwargs:
        pytest.fail(
            f"the mark {PES} takes one or more whole numbers from 1 to {settings.MOST}, such as "
            f"{PES}(1, 2, 5), not {mark.args or mark.kwargs}",
            pytrace=False,
        )
    metafunc.parametrize("n_pes", mark.args, ids=[f"{n}pes" for n in mark.args], indirect=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Let the report of a test that fails say how to repeat its jobs, and where traces are."""
    report = yield
    if lines := item.stash.get(LINES, None):
        report.sections.append(("gpushmem", "\n".join(lines)))
    if report.when == "call" and (jobs := item.stash.get(CHECKED, 0)):
        report.user_properties.append((CHECKED_JOBS, jobs))
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say how many jobs were checked, also those of the workers of xdist."""
    reports = chain.from_iterable(terminalreporter.stats.values())
    found = chain.from_iterable(getattr(report, "user_properties", ()) for report in reports)
    if jobs := sum(value for name, value in found if name == CHECKED_JOBS):
        terminalreporter.write_line(f"gpushmem: {jobs} job{'s' * (jobs > 1)} checked")


@pytest.fixture
def n_pes(request: pytest.FixtureRequest) -> int:
    """The number of PEs of this run of the test, by its mark `gpushmem_pes`; 1 without the mark."""
    return getattr(request, "param", 1)


@pytest.fixture
def run_pes(request: pytest.FixtureRequest, n_pes: int) -> Callable[..., list[Any]]:
    """`run_pes(function, n_pes, *args)`: run `function(*args)` in new PEs; return their results.

    `function` calls `gpushmem.init` itself; its result, one for each PE, is pickled. PEs of the cpu
    backend are forked, so `function` may be a closure of the test, and sees its fixtures; but what
    it changes stays in the PE. PEs of other backends are new processes: see `gpushmem.spawn`.
    Without a number, or with None, there are as many PEs as the mark `gpushmem_pes` says, else 1.
    Options: `timeout`, seconds for the whole job (120), and `heap_size`, `threads_per_pe` and
    `backend` as for `spawn`.

    Raises what `spawn` raises: `PeerFailed`, with the traceback of the first PE that failed, after
    a failed assertion too; `Deadlock` or `WaitTimeout`, with the report of what each PE waits for.
    Output of PEs is captured as that of the test.

    With `pytest --gpushmem-check`, or in a test with the mark `gpushmem_check`, the checker looks
    at what the PEs did, as `gpushmem run --check` does, and the test fails with its report if it
    finds a problem. `gpushmem_check(False)` turns it off for a test. What is not checked is run
    with weak memory after `--gpushmem-memory weak`. All jobs are recorded after `--gpushmem-trace
    DIR`.
    """
    run, default = _way(request.node), n_pes

    def in_pes(
        function: Callable[..., Any], n_pes: int | None = None, *args: Any, **options: Any
    ) -> list[Any]:
        __tracebackhide__ = True
        return run(function, default if n_pes is None else n_pes, *args, **options)

    return in_pes


def _way(item: pytest.Item) -> Callable[..., list[Any]]:
    """How options and marks say that the jobs of a test are run."""
    option, lines = item.config.getoption, item.stash.setdefault(LINES, [])
    how: dict[str, Any] = {}
    if (seed := option("gpushmem_seed")) is not None:
        how["seed"] = int(seed)
    trace, run = option("gpushmem_trace"), _run
    if trace is not None:
        run = partial(_run_traced, _Folders(Path(trace), item.nodeid, lines))
    check = _check_of(item)
    if check.on:
        return partial(_run_checked, item, check, option("gpushmem_check_ignore"), run, how)
    how["memory"] = option("gpushmem_memory") or settings.get("GPUSHMEM_MEMORY")
    if how["memory"] == "weak":
        given = settings.is_set("GPUSHMEM_SEED")
        any_seed = settings.get("GPUSHMEM_SEED") if given else secrets.randbelow(settings.MOST)
        again = f"--gpushmem-memory weak --gpushmem-seed {how.setdefault('seed', any_seed)}"
        lines.append(f"to repeat this order of operations: {again}")
    return partial(run, **how)


class _Check(NamedTuple):
    """Whether the jobs of a test are checked, and how; the fields are those of the mark."""

    on: bool = True
    runs: str | None = None
    budget: float | None = None
    schedule: str | None = None


def _check_of(item: pytest.Item) -> _Check:
    """How the jobs of a test are to be checked."""
    mark, option = item.get_closest_marker(CHECK), item.config.getoption
    check = _Check(option("gpushmem_check")) if mark is None else _Check(*mark.args, **mark.kwargs)
    if check.runs not in (None, "all"):
        raise ArgumentError(f"the mark {CHECK}: runs is 'all', or left out, not {check.runs!r}")
    return check._replace(
        runs=check.runs or option("gpushmem_check_runs"),
        budget=check.budget or option("gpushmem_check_budget") or BUDGET,
        schedule=option("gpushmem_check_schedule"),
    )


class _Folders:
    """The folders of the traces of a test's jobs."""

    def __init__(self, within: Path, test: str, lines: list[str]) -> None:
        self._path = within / re.sub(r"[^\w.]+", "-", test).strip("-")[:LONGEST]
        self._lines, self._jobs = lines, 0

    def next(self) -> Path:
        """A folder for one more job; the report of the test names it."""
        self._jobs += 1
        last = f"+{self._jobs}" if self._jobs > 1 else ""
        path = self._path.with_name(self._path.name + last)
        self._lines.append(f"see what the PEs did: gpushmem trace open {shlex.quote(str(path))}")
        return path


def _run_traced(folders: _Folders, *args: Any, **options: Any) -> list[Any]:
    __tracebackhide__ = True
    return _run(*args, **{**options, "trace": folders.next()})


def _run_checked(
    item: pytest.Item, check: _Check, known: str | None, run: Callable[..., list[Any]],
    how: dict[str, Any], *args: Any, **options: Any,
) -> list[Any]:  # fmt: skip
    __tracebackhide__ = True
    ordered = check.runs is not None or check.schedule is not None
    _need_records(options.get("backend"), ordered)
    job = partial(run, *args, **{**options, **how, "threads_per_pe": None})
    path = None if known is None else Path(known)
    lines = item.stash[LINES]
    results = _ordered(job, path, check, lines) if ordered else _checked(job, path)
    item.stash[CHECKED] = item.stash.get(CHECKED, 0) + 1
    return results


def _run(
    function: Callable[..., Any], n_pes: int, *args: Any, timeout: float = 120, **options: Any
) -> list[Any]:
    """Run a function in PEs; errors end where the test made the call."""
    __tracebackhide__ = True
    from gpushmem.start.launch.spawn import spawn  # noqa: PLC0415  (heavy, for tests that use it)

    try:
        return spawn(function, n_pes, args, limit=timeout, **options)
    except PeerFailed as error:
        told = f"{error.reason}\n\n{error.report}".strip()
        raise PeerFailed(error.pe, told, error.report) from None
    except ShmemError as error:
        raise error.with_traceback(None) from None


def _checked(run: Callable[[], list[Any]], known: Path | None) -> list[Any]:
    """Run a job, and fail with what the checker finds in it; `known` is a file of known problems.

    A job that raises a `ShmemError` is checked, too.
    """
    __tracebackhide__ = True
    from gpushmem.check import command  # noqa: PLC0415  (heavy, for tests that are checked)

    found, first = command.Findings(command.Known(known)), _First(run)
    with command.recorded() as folder:
        first()
        found.add(folder)
    return _verdict(found, first)


class _First:
    """A job; of the first run, what it has given."""

    def __init__(self, run: Callable[[], list[Any]]) -> None:
        self._run, self._has_run = run, False
        self.results: list[Any] = []
        self.error: ShmemError | None = None

    def __call__(self) -> int:
        """Run it; returns an exit code. Later runs say why they have failed."""
        code = 0
        try:
            results, error = self._run(), None
        except ShmemError as failure:
            results, error, code = [], failure, 1
        except KeyboardInterrupt:
            if not self._has_run:
                raise
            return 130  # it was ended: nobody had a turn for long
        if not self._has_run:
            self._has_run, self.results, self.error = True, results, error
        elif error is not None:
            sys.stderr.write(f"{error}\n")
        return code


def _ordered(
    run: Callable[[], list[Any]], known: Path | None, check: _Check, lines: list[str]
) -> list[Any]:
    """Run a job in every order, or in one, and fail with what is found, or if a run fails."""
    __tracebackhide__ = True
    from gpushmem.check import command, every_schedule  # noqa: PLC0415  (heavy)

    found, first = command.Findings(command.Known(known)), _First(run)
    found.options = "--gpushmem-"
    if check.schedule is not None:
        every_schedule.run_by(first, found, every_schedule.load(check.schedule))
    else:
        every_schedule.run_all(first, found, check.budget or BUDGET)
    said = [f"gpushmem check: {line}" for line in found.remarks()]
    lines += said
    results = _verdict(found, first)
    failed = found.schedules["failed"] if found.schedules else []
    if failed:
        outputs = [one["output"] for one in failed if one["output"]]
        pytest.fail("\n".join([*said, *outputs[:1]]), pytrace=False)
    return results


def _verdict(found: Any, first: _First) -> list[Any]:
    """What the first run has given; fails with the problems that have been found."""
    __tracebackhide__ = True
    for line in found.unchecked:
        warnings.warn(f"gpushmem check: {line}", stacklevel=2)
    if found.problems:
        error = [str(first.error)] if first.error else []
        pytest.fail("\n".join([found.text(), *error]), pytrace=False)
    if first.error is not None:
        raise first.error.with_traceback(None)
    return first.results


def _need_records(backend: str | None, ordered: bool) -> None:
    """Raise `ArgumentError` if the PEs cannot be checked."""
    __tracebackhide__ = True
    from gpushmem.backends import registry, selection  # noqa: PLC0415

    if settings.memory_is_weak():
        raise ArgumentError("run_pes: the checker needs no weak memory: unset GPUSHMEM_MEMORY")
    able = registry.that_schedule() if ordered else registry.that_record()
    name = selection.choose(backend)[0]
    missing = "cannot choose who goes first" if ordered else "records nothing"
    if name not in able:
        raise ArgumentError(
            f"run_pes: the {name} backend {missing} for the checker; set GPUSHMEM_BACKEND="
            f"{' or '.join(able)}"
        )
