"""PEs from inside a program: for notebooks and tests."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable, Sequence
from typing import Any

from gpushmem.errors import ArgumentError, Deadlock, PeerFailed, WaitTimeout
from gpushmem.job.board import DEADLOCK, TIMEOUT
from gpushmem.job.job import current
from gpushmem.launch.local import Outcome, launch, preload
from gpushmem.size import parse_size

__all__ = ["collect", "spawn"]


def spawn(
    function: Callable[..., Any],
    n_pes: int = 1,
    args: Sequence[Any] = (),
    *,
    heap_size: str | int | None = None,
    timeout: float | None = None,
    threads_per_pe: int | None = None,
) -> list[Any]:
    """Run `function(*args)` in `n_pes` new PEs on this machine; return what each returned, by PE.

    The PEs are forked from this process: `function` may be a closure, and sees everything as it is
    now; what it returns is pickled. It calls `init` itself, as a script does. What PEs print goes
    to `sys.stdout` and `sys.stderr`. Options as those of `gpushmem run`.

    Returns when all have ended. Raises `PeerFailed` when a PE fails (its traceback has been
    printed), `Deadlock` or `WaitTimeout`, with the report, and `ArgumentError` where gpushmem is
    initialised: the PEs would share this process's runtime. KeyboardInterrupt ends the PEs.
    """
    if not isinstance(n_pes, int) or n_pes < 1:
        raise ArgumentError(f"spawn: n_pes must be 1 or more, not {n_pes!r}")
    runtime = sys.modules.get("gpushmem.runtime")
    if runtime is not None and runtime.is_initialized():
        raise ArgumentError("spawn: gpushmem is initialised in this process: call finalize() first")
    outcome, results = collect(
        n_pes, lambda: function(*args), pipes=not _is_ours(),
        heap_size=None if heap_size is None else parse_size(heap_size), timeout=timeout,
        threads_per_pe=threads_per_pe,
    )  # fmt: skip
    if outcome.stopped_by is not None:
        raise KeyboardInterrupt
    if outcome.verdict in (DEADLOCK, TIMEOUT):
        kind = Deadlock if outcome.verdict == DEADLOCK else WaitTimeout
        raise kind(f"{outcome.reason}\n\n{outcome.report}")
    if outcome.first is not None:
        raise PeerFailed(outcome.first, outcome.failure)
    return results


def collect(n_pes: int, function: Callable[[], Any], **options: Any) -> tuple[Outcome, list[Any]]:
    """Launch `function`; return how that ended, and, if it ended well, what PEs returned."""
    preload(n_pes)
    fds = [os.memfd_create("gpushmem-result") for _ in range(n_pes)]

    def target() -> None:
        job = current()
        assert job is not None
        value = function()
        with open(fds[job.my_pe], "wb", closefd=False) as file:
            pickle.dump(value, file)

    try:
        outcome = launch(n_pes, target, **options)
        if outcome.code:
            return outcome, []
        return outcome, [_load(fd) for fd in fds]
    finally:
        for fd in fds:
            os.close(fd)


def _load(fd: int) -> Any:
    with open(fd, "rb", closefd=False) as file:
        file.seek(0)
        return pickle.load(file)  # noqa: S301  (from a process that is a copy of this one)


def _is_ours() -> bool:
    """Whether Python's output goes where the process's does: not in a notebook."""
    try:
        return (sys.stdout.fileno(), sys.stderr.fileno()) == (1, 2)
    except (AttributeError, OSError, ValueError):
        return False
