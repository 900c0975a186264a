"""The exceptions: one tree under `ShmemError`.

Each also derives from the built-in a caller would reach for, so `except MemoryError` and
`except ValueError` work as they do for NumPy. Messages say what happened, with the numbers,
and what to do next.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from types import TracebackType


class ShmemError(Exception):
    """Any error raised by gpushmem."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        _name_pages()


class NotInitializedError(ShmemError, RuntimeError):
    """An operation was called before `init()` or after `finalize()`."""


class ArgumentError(ShmemError, ValueError):
    """An argument is out of range or does not fit another: a PE number, a size, a launch shape.

    Where Python or NumPy would raise `TypeError` (wrong type, missing argument) or `IndexError`,
    the error is an instance of that class as well.
    """


class ArgumentTypeError(ArgumentError, TypeError):
    """An argument has the wrong type, is missing, or is unknown."""


class ArgumentIndexError(ArgumentError, IndexError):
    """An array index is out of bounds or of a kind that is not supported."""


class SymmetryError(ShmemError, ValueError):
    """The remote argument of an operation is not on the symmetric heap, or has been freed."""


class HeapExhausted(ShmemError, MemoryError):
    """The symmetric heap, or the device's memory, has no free block that is large enough."""


class TeamError(ShmemError, ValueError):
    """A team does not exist (any more), or the maximum number of teams is in use."""


class CollectiveMismatch(ShmemError, RuntimeError):
    """PEs met in one collective call with different arguments, or in different calls."""


class PeerFailed(ShmemError, RuntimeError):
    """Another PE, `pe`, failed, so a wait that depends on it cannot end; `reason` says why.

    `report` is the PE's traceback, where `spawn` raises and there is one.
    """

    def __init__(self, pe: int, reason: str, report: str = "") -> None:
        super().__init__(pe, reason)
        self.pe, self.reason, self.report = pe, reason, report

    def __str__(self) -> str:
        return f"PE {self.pe} failed: {self.reason}"


class Deadlock(ShmemError, RuntimeError):
    """No PE can go on: every PE waits for an event no PE can produce. A report lists the waits."""


class WaitTimeout(ShmemError, TimeoutError):
    """A host waited longer in one call than `set_timeout` or `--timeout` allows."""


class KernelError(ShmemError, RuntimeError):
    """A kernel thread failed; the message names kernel, block, thread and source line."""


class KernelTypingError(ShmemError, TypeError):
    """A kernel does what kernels cannot do, at the line shown. It is Numba's `TypingError`, too."""


class BackendUnavailable(ShmemError, RuntimeError):
    """The requested backend cannot be used here; the message says why and what to install."""


class BootstrapError(ShmemError, RuntimeError):
    """The PEs of a job did not find each other; the message names the missing PEs, or the cause."""


def where_to_read_on(error: BaseException | None) -> str:
    """The line below an error that ended a program: which page is about it; "" for no page."""
    kinds = () if error is None else type(error).__mro__
    name = next((kind.__name__ for kind in kinds if kind.__module__ == __name__), None)
    return f"gpushmem: causes and cures: gpushmem help {name}\n" if name else ""


OURS = f"{Path(__file__).parent}{os.sep}"


def of_the_caller(error: BaseException, tb: TracebackType | None) -> TracebackType | None:
    """The traceback of an error without our own frames at its end: our errors say what is wrong."""
    if not isinstance(error, ShmemError):
        return tb
    frames = []
    while tb is not None:
        frames.append(tb)
        tb = tb.tb_next
    while frames and frames[-1].tb_frame.f_code.co_filename.startswith(OURS):
        frames.pop()
    for frame in reversed(frames):
        tb = TracebackType(tb, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return tb


_named: list[bool] = []  # whether uncaught errors name their pages


def _name_pages() -> None:
    """From now on: name an uncaught error's page below its traceback."""
    if _named:
        return
    _named.append(True)
    previous = sys.excepthook

    def on_exception(
        kind: type[BaseException], error: BaseException, tb: TracebackType | None
    ) -> None:
        error.__traceback__ = of_the_caller(error, tb)
        previous(kind, error, error.__traceback__)
        with suppress(AttributeError, OSError, ValueError):  # no stream; broken pipe; closed
            sys.stderr.write(where_to_read_on(error))

    sys.excepthook = on_exception
