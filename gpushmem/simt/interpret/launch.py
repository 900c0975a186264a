"""A launch of a kernel in the interpreter, on the thread that launches it."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from gpushmem.artifacts.launch_shape import LaunchShape
from gpushmem.simt.interpret.debugger import watched
from gpushmem.simt.interpret.threads import Grid

__all__ = ["interpret"]

OWN = str(Path(__file__).parent)


def interpret(body: Any, shape: LaunchShape, args: tuple[Any, ...], debug: bool) -> None:
    """Run a kernel's function, as `Names` makes it, in each thread; returns when all have returned.

    `args` are as kernels see them. Raises what a thread raises, with a note that names the thread;
    with `debug` its message begins with the thread, as on a GPU, and a division by zero is an
    error. Threads that wait for what cannot come are a `KernelError`.
    """

    def errors() -> AbstractContextManager[object]:
        return np.errstate(all="ignore", divide="call" if debug else "ignore", call=_divided)

    grid = Grid(body.__name__, shape, lambda: body(*args), errors)
    try:
        with watched():
            grid.run()
    except BaseException as error:  # noqa: BLE001  (raised again)
        _explain(error, grid, debug)
        raise error.with_traceback(_of_users(error.__traceback__)) from error.__cause__


def _divided(what: str, flag: int) -> None:
    raise ZeroDivisionError("division by zero")


def _explain(error: BaseException, grid: Grid, debug: bool) -> None:
    thread = grid.failed
    if thread is None:
        return
    where = f"In kernel {grid.name}, {thread}"
    if debug:
        frame = _last(error.__traceback__)
        tid, ctaid = list(thread.tid)[::-1], list(thread.block.bid)[::-1]
        prefix = f"{frame}tid={tid} ctaid={ctaid}"
        first = f"{prefix}: {error.args[0]}" if error.args else prefix
        error.args = (first, *error.args[1:])
    if sys.version_info >= (3, 11):
        error.add_note(where)


def _last(traceback: TracebackType | None) -> str:
    """The user's line that raised."""
    found = ""
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if not code.co_filename.startswith(OWN):
            path = Path(code.co_filename).resolve()
            found = f"In function {code.co_name!r}, file {path}, line {traceback.tb_lineno}, "
        traceback = traceback.tb_next
    return found


def _of_users(traceback: TracebackType | None) -> TracebackType | None:
    """A traceback without the interpreter's own lines."""
    if traceback is None:
        return None
    rest = _of_users(traceback.tb_next)
    if traceback.tb_frame.f_code.co_filename.startswith(OWN):
        return rest
    frame, lasti, line = traceback.tb_frame, traceback.tb_lasti, traceback.tb_lineno
    return TracebackType(rest, frame, lasti, line)
