"""PEs from inside a program: for notebooks and tests."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from gpushmem.backends import choice
from gpushmem.errors import ArgumentError, Deadlock, PeerFailed, WaitTimeout
from gpushmem.job.board import DEADLOCK, TIMEOUT
from gpushmem.launch.local import Outcome, launch, preload
from gpushmem.launch.pickling import PLAIN, dumps
from gpushmem.launch.program import Program, calling
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
    backend: str | None = None,
) -> list[Any]:
    """Run `function(*args)` in `n_pes` new PEs on this machine; return what each returned, by PE.

    It calls `init` itself, as a script does; what it returns is pickled. What PEs print goes to
    `sys.stdout` and `sys.stderr`. Options as those of `gpushmem run`; `backend` is chosen as by
    `init`, which takes the same in the PEs.

    PEs of the cpu backend are forked from this process: `function` may be a closure, and sees
    everything as it is now. Those of others are new processes, to which it is sent: by the package
    cloudpickle if that is installed, else by pickle, which takes functions of modules only.

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
        n_pes, partial(function, *args), pipes=not _is_ours(),
        heap_size=None if heap_size is None else parse_size(heap_size), timeout=timeout,
        threads_per_pe=threads_per_pe, backend=backend,
    )  # fmt: skip
    if outcome.stopped_by is not None:
        raise KeyboardInterrupt
    if outcome.verdict in (DEADLOCK, TIMEOUT):
        kind = Deadlock if outcome.verdict == DEADLOCK else WaitTimeout
        raise kind(f"{outcome.reason}\n\n{outcome.report}")
    if outcome.first is not None:
        raise PeerFailed(outcome.first, outcome.failure)
    return results


def collect(
    n_pes: int, function: Callable[[], Any], *, backend: str | None = None,
    keep: Sequence[int] = (), **options: Any,
) -> tuple[Outcome, list[Any]]:  # fmt: skip
    """Launch `function`; return how that ended, and, if it ended well, what PEs returned.

    `keep` are descriptors that it uses: a new process has no others.
    """
    name, _ = choice.choose(backend)
    with ExitStack() as stack:
        pickled, *results = (_memory(stack) for _ in range(1 + n_pes))
        what: Callable[[], object] | Program
        if name == "cpu":
            preload(n_pes)
            what = calling(lambda: function, results, pickle.dumps)
        else:
            os.write(pickled, _dump(function))
            what = Program("call", tuple(map(str, (pickled, *results))))
            options["keep"] = (pickled, *results, *keep)
        outcome = launch(n_pes, what, environ={"GPUSHMEM_BACKEND": name}, **options)
        return outcome, [] if outcome.code else [_load(fd) for fd in results]


def _memory(stack: ExitStack) -> int:
    fd = os.memfd_create("gpushmem-result")
    stack.callback(os.close, fd)
    return fd


def _dump(function: Callable[[], Any]) -> bytes:
    """The function for processes that are not copies of this one."""
    what = getattr(function, "func", function)
    try:
        if PLAIN and getattr(what, "__module__", None) == "__main__":
            raise pickle.PicklingError("it is defined in __main__, which is another module there")
        return dumps(function)
    except Exception as error:  # pickling raises what it likes
        name = getattr(what, "__qualname__", repr(what))
        say = "define it in a module, or pip install cloudpickle" if PLAIN else "do without"
        raise ArgumentError(
            f"spawn: {name} cannot be sent to new processes ({error}): {say}"
        ) from error


def _load(fd: int) -> Any:
    with open(fd, "rb", closefd=False) as file:
        file.seek(0)
        return pickle.load(file)  # noqa: S301  (from a process that this one has started)


def _is_ours() -> bool:
    """Whether Python's output goes where the process's does: not in a notebook."""
    try:
        return (sys.stdout.fileno(), sys.stderr.fileno()) == (1, 2)
    except (AttributeError, OSError, ValueError):
        return False
