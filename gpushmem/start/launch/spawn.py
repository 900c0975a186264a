"""`spawn`: run a function in PEs from inside a program, for notebooks and tests."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from gpushmem import settings
from gpushmem.arguments import shown
from gpushmem.backends import registry, selection
from gpushmem.errors import ArgumentError, Deadlock, PeerFailed, WaitTimeout
from gpushmem.job.board import DEADLOCK, TIMEOUT
from gpushmem.job.descriptors import fill_standard
from gpushmem.job.limits import within_limits
from gpushmem.size import parse_size
from gpushmem.start.launch.local import Outcome, check_room, launch, preload
from gpushmem.start.launch.pickling import PLAIN, dumps
from gpushmem.start.launch.program import PLAIN_RESULTS, Program, calling

__all__ = ["check_arguments", "collect", "spawn"]


def spawn(
    function: Callable[..., Any],
    n_pes: int = 1,
    args: Sequence[Any] = (),
    *,
    heap_size: str | int | None = None,
    timeout: float | None = None,
    limit: float | None = None,
    threads_per_pe: int | None = None,
    backend: str | None = None,
    trace: str | Path | None = None,
    memory: str | None = None,
    seed: int | None = None,
) -> list[Any]:
    """Run `function(*args)` in `n_pes` new PEs on this machine; return the results, by PE.

    `function` calls `init` itself, as a script does. Its result is pickled; a PE that ends by
    `sys.exit()` gives None. Output of PEs goes to `sys.stdout` and `sys.stderr`. `n_pes` is at most
    65,536. The options are those of `gpushmem run`: `heap_size` of each PE in bytes or as "256M",
    `timeout` in seconds for a host's wait in one call, `threads_per_pe` cores for the kernels of
    each PE; `backend` is chosen as in `init`, and is then the default of `init` in the PEs; `trace`
    is a folder for what the PEs do, see `gpushmem.trace.show`; `memory` is "weak" or "native", and
    `seed`, a whole number, decides what is late (both as the environment variables say, if they are
    None: native, and 0). A job that takes more than `limit` seconds in all is ended.

    PEs of the cpu backend are forked from this process: `function` may be a closure, and sees all
    current state. PEs of other backends are new processes: `function` is pickled with the package
    cloudpickle if it is installed, else with pickle, which supports only functions of modules.

    Returns when all PEs have ended. Raises `PeerFailed` if a PE fails (its traceback has been
    printed, and is the error's `report`); `Deadlock` or `WaitTimeout`, with the report;
    `ArgumentError` if gpushmem is initialised here, because the PEs would share this process's
    runtime. If the system's limits (open files, processes, memory) do not allow so many PEs, none
    is left running, and the `ShmemError` names the limit. KeyboardInterrupt ends the PEs.
    """
    check_arguments(function, n_pes, args, timeout, limit, threads_per_pe, memory, seed)
    outcome, results = collect(
        n_pes, partial(function, *args), pipes=not _is_ours(),
        heap_size=None if heap_size is None else parse_size(heap_size), timeout=timeout,
        limit=limit, threads_per_pe=threads_per_pe, backend=backend, say_verdict=False,
        trace=trace, memory=memory, seed=seed,
    )  # fmt: skip
    if outcome.stopped_by is not None:
        raise KeyboardInterrupt
    if outcome.verdict in (DEADLOCK, TIMEOUT):
        kind = Deadlock if outcome.verdict == DEADLOCK else WaitTimeout
        seen = "" if trace is None else f"\nSee what the PEs did: gpushmem trace open {trace}\n"
        raise kind(f"{outcome.reason}\n\n{outcome.report}{seen}")
    if outcome.first is not None:
        raise PeerFailed(outcome.first, outcome.failure, outcome.report)
    return results


def _prepared(trace: str | Path) -> str:
    from gpushmem.trace.ring import prepare  # noqa: PLC0415  (for those who trace)

    return prepare(trace)


def check_arguments(
    function: Any, n_pes: Any, args: Any = (), timeout: Any = None, limit: Any = None,
    threads_per_pe: Any = None, memory: Any = None, seed: Any = None,
) -> None:  # fmt: skip
    """Raise `ArgumentError` for invalid arguments, or if no PE can be started here."""
    most = settings.MOST
    seconds = f"a number of seconds above 0, at most {settings.MOST_SECONDS:g}, or None"
    checks: dict[str, tuple[Any, bool, str]] = {
        "function": (function, callable(function), "something to call"),
        "n_pes": (n_pes, _between(n_pes, 1, most), f"a whole number from 1 to {most}"),
        "args": (args, isinstance(args, tuple | list), "a tuple or a list"),
        "timeout": (timeout, _is_time(timeout), seconds),
        "limit": (limit, _is_time(limit), seconds),
        "threads_per_pe": (
            threads_per_pe, threads_per_pe is None or _between(threads_per_pe, 1, most),
            f"a whole number from 1 to {most}, or None",
        ),
        "memory": (memory, memory in (None, "native", "weak"), "'native', 'weak' or None"),
        "seed": (
            seed, seed is None or _between(seed, 0, most),
            f"a whole number from 0 to {most}, or None",
        ),
    }  # fmt: skip
    for name, (value, good, wanted) in checks.items():
        if not good:
            raise ArgumentError(f"spawn: {name} must be {wanted}, not {shown(value)}")
    runtime = sys.modules.get("gpushmem.runtime")
    if runtime is not None and runtime.is_initialized():
        raise ArgumentError("spawn: gpushmem is initialised in this process: call finalize() first")


def _is_time(value: Any) -> bool:
    return value is None or _between(value, 1e-9, settings.MOST_SECONDS, int | float)


def _between(value: Any, least: float, most: float, kind: Any = int) -> bool:
    return isinstance(value, kind) and bool(least <= value <= most)


def collect(
    n_pes: int, function: Callable[[], Any], *, backend: str | None = None,
    keep: Sequence[int] = (), trace: str | Path | None = None, memory: str | None = None,
    seed: int | None = None, **options: Any,
) -> tuple[Outcome, list[Any]]:  # fmt: skip
    """Launch `function`; return how the job ended and, if it ended well, the PEs' results.

    `keep` are descriptors that the function uses: a new process inherits no others.
    """
    name, _ = selection.choose(backend)
    wanted = {"GPUSHMEM_BACKEND": name, "GPUSHMEM_MEMORY": memory, "GPUSHMEM_SEED": seed}
    environ = {setting: str(value) for setting, value in wanted.items() if value is not None}
    if trace is not None:
        _need(name, registry.that_trace(), "records nothing; leave trace out")
    if memory == "weak":
        _need(name, registry.that_are_late(), "performs no operation late; leave memory out")
    check_room(n_pes, pipes=bool(options.get("pipes")))
    fill_standard()
    with ExitStack() as stack:
        with within_limits(f"cannot make room for the results of {n_pes} PEs"):
            pickled, *results = [_memory(stack) for _ in range(1 + n_pes)]
        what: Callable[[], object] | Program
        if preload(name, n_pes):
            what = calling(lambda: function, results, pickle.dumps)
        else:
            os.write(pickled, _dump(function))
            what = Program("call", tuple(map(str, (pickled, *results))))
            options["keep"] = (pickled, *results, *keep)
        if trace is not None:
            environ |= {"GPUSHMEM_TRACE": _prepared(trace)}
        outcome = launch(n_pes, what, environ=environ, **options)
        return outcome, [] if outcome.code else [_load(*each) for each in enumerate(results)]


def _need(name: str, able: list[str], what: str) -> None:
    """Raise `ArgumentError` if the backend is not one of those that are able to."""
    if name not in able:
        backends = " or ".join(map(repr, able))
        raise ArgumentError(f"spawn: the {name} backend {what}, or choose backend={backends}")


def _memory(stack: ExitStack) -> int:
    fd = os.memfd_create("gpushmem-result")
    stack.callback(os.close, fd)
    return fd


def _dump(function: Callable[[], Any]) -> bytes:
    """Pickle the function for processes that are not forks of this one."""
    what = getattr(function, "func", function)
    try:
        if PLAIN and getattr(what, "__module__", None) == "__main__":
            raise pickle.PicklingError("it is defined in __main__, a different module in the PEs")
        return dumps(function)
    except Exception as error:  # pickling may raise anything
        name = getattr(what, "__qualname__", repr(what))
        say = "define it in a module, or pip install cloudpickle"
        say = say if PLAIN else "make it and what it refers to picklable"
        raise ArgumentError(
            f"spawn: {name} cannot be sent to new processes ({error}): {say}"
        ) from error


def _load(pe: int, fd: int) -> Any:
    """Return a PE's result; None if it ended without returning, as by `sys.exit()`."""
    if not os.fstat(fd).st_size:
        return None
    with open(fd, "rb", closefd=False) as file:
        file.seek(0)
        try:
            return pickle.load(file)  # noqa: S301  (from a process that this one has started)
        except Exception as error:
            raise ArgumentError(
                f"spawn: the result of PE {pe} cannot be read here ({error}): {PLAIN_RESULTS}"
            ) from error


def _is_ours() -> bool:
    """Whether Python's streams are the process's descriptors 1 and 2: not so in a notebook."""
    try:
        return (sys.stdout.fileno(), sys.stderr.fileno()) == (1, 2)
    except (AttributeError, OSError, ValueError):
        return False
