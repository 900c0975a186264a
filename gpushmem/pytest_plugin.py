"""Plugin for pytest: the fixture `run_pes` runs functions in PEs; `--gpushmem-check` checks them.

pytest imports this module in every session, so it imports nothing heavy before a test uses it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gpushmem.errors import ArgumentError, PeerFailed, ShmemError

__all__ = ["run_pes"]

MARK = "gpushmem_check"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("gpushmem")
    group.addoption(
        "--gpushmem-check",
        action="store_true",
        help="find races and missing synchronisation in what run_pes runs",
    )
    group.addoption(
        "--gpushmem-check-ignore", metavar="FILE", help="known problems that are not to be reported"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Declare the mark, and refuse a file that does not exist."""
    config.addinivalue_line(
        "markers", f"{MARK}(on=True): whether the checker checks what run_pes runs in this test"
    )
    file = config.getoption("gpushmem_check_ignore")
    if file is not None and not Path(file).is_file():
        raise pytest.UsageError(f"--gpushmem-check-ignore: there is no file {file}")


def pytest_report_header() -> str | None:
    """Say that the CUDA simulator is on."""
    from gpushmem import settings  # noqa: PLC0415

    if not settings.get("GPUSHMEM_SIM"):
        return None
    return f"gpushmem: numba.cuda runs on the CPU, as {settings.get('GPUSHMEM_SIM_GPU')}"


@pytest.fixture
def run_pes(request: pytest.FixtureRequest) -> Callable[..., list[Any]]:
    """`run_pes(function, n_pes, *args)`: run `function(*args)` in new PEs; return their results.

    `function` calls `gpushmem.init` itself; its result, one for each PE, is pickled. PEs of the cpu
    backend are forked, so `function` may be a closure of the test, and sees its fixtures; but what
    it changes stays in the PE. PEs of other backends are new processes: see `gpushmem.spawn`.
    Options: `timeout`, seconds for the whole job (120), and `heap_size`, `threads_per_pe` and
    `backend` as for `spawn`.

    Raises what `spawn` raises: `PeerFailed`, with the traceback of the first PE that failed, after
    a failed assertion too; `Deadlock` or `WaitTimeout`, with the report of what each PE waits for.
    Output of PEs is captured as that of the test.

    With `pytest --gpushmem-check`, or in a test with the mark `gpushmem_check`, the checker looks
    at what the PEs did, as `gpushmem run --check` does, and the test fails with its report if it
    finds a problem. `gpushmem_check(False)` turns it off for a test.
    """
    mark = request.node.get_closest_marker(MARK)
    option = request.config.getoption
    on = _is_on(*mark.args, **mark.kwargs) if mark else option("gpushmem_check")
    file = option("gpushmem_check_ignore")
    return partial(_checked, file and Path(file)) if on else _run


def _is_on(on: bool = True) -> bool:
    return on


def _run(
    function: Callable[..., Any],
    n_pes: int = 1,
    *args: Any,
    timeout: float = 120,
    **options: Any,
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


def _checked(
    ignore: Path | None, function: Callable[..., Any], n_pes: int = 1, *args: Any, **options: Any
) -> list[Any]:
    """The same, under the checker."""
    __tracebackhide__ = True
    from gpushmem.check import command  # noqa: PLC0415  (heavy, for tests that are checked)

    _need_records(options.get("backend"))
    found, failed = command.Findings(command.Known(ignore)), None
    with command.recorded() as folder:
        try:
            results = _run(function, n_pes, *args, **{**options, "threads_per_pe": None})
        except ShmemError as error:
            failed = error
        found.add(folder)
    for line in found.unchecked:
        warnings.warn(f"gpushmem check: {line}", stacklevel=2)
    if found.problems:
        pytest.fail("\n".join([found.text(), *([str(failed)] if failed else [])]), pytrace=False)
    if failed is not None:
        raise failed.with_traceback(None)
    return results


def _need_records(backend: str | None) -> None:
    """Raise `ArgumentError` if the backend of the PEs cannot be checked."""
    __tracebackhide__ = True
    from gpushmem import settings  # noqa: PLC0415
    from gpushmem.backends import choice, registry  # noqa: PLC0415

    if settings.memory_is_weak():
        raise ArgumentError("run_pes: the checker needs no weak memory: unset GPUSHMEM_MEMORY")
    name, able = choice.choose(backend)[0], registry.that_record()
    if name not in able:
        raise ArgumentError(
            f"run_pes: the {name} backend records nothing for the checker; set GPUSHMEM_BACKEND="
            f"{' or '.join(able)}"
        )
