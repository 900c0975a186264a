"""The exceptions: one tree under `ShmemError`.

Each also derives from the built-in a caller would reach for, so `except MemoryError` and
`except ValueError` work as they do for NumPy. Messages say what happened, with the numbers,
and what to do next.
"""

from __future__ import annotations

__all__ = [
    "ArgumentError",
    "ArgumentIndexError",
    "ArgumentTypeError",
    "BackendUnavailable",
    "BootstrapError",
    "CollectiveMismatch",
    "Deadlock",
    "HeapExhausted",
    "KernelError",
    "NotInitializedError",
    "PeerFailed",
    "ShmemError",
    "SymmetryError",
    "TeamError",
    "WaitTimeout",
]


class ShmemError(Exception):
    """Any error raised by gpushmem."""


class NotInitializedError(ShmemError, RuntimeError):
    """An operation was called before `init()` or after `finalize()`."""


class ArgumentError(ShmemError, ValueError):
    """An argument is out of range or does not fit another: a PE number, a size, a launch shape.

    Where Python or NumPy would raise `TypeError`, as for an argument of a wrong kind or a missing
    one, or `IndexError`, it is that as well.
    """


class ArgumentTypeError(ArgumentError, TypeError):
    """An argument is of a wrong kind, is missing, or is not known."""


class ArgumentIndexError(ArgumentError, IndexError):
    """An array has no such element."""


class SymmetryError(ShmemError, ValueError):
    """A remote operation was given memory that is not on the symmetric heap, or was freed."""


class HeapExhausted(ShmemError, MemoryError):
    """The symmetric heap has no free block, or the device no memory, for an allocation."""


class TeamError(ShmemError, ValueError):
    """A team does not exist (any more), or there are as many teams as there can be."""


class CollectiveMismatch(ShmemError, RuntimeError):
    """PEs met in one collective call with different arguments, or in different calls."""


class PeerFailed(ShmemError, RuntimeError):
    """Another PE, `pe`, has failed, so that what is waited for will not come; `reason` says how."""

    def __init__(self, pe: int, reason: str) -> None:
        super().__init__(pe, reason)
        self.pe, self.reason = pe, reason

    def __str__(self) -> str:
        return f"PE {self.pe} failed: {self.reason}"


class Deadlock(ShmemError, RuntimeError):
    """No PE can go on: each waits for what nobody will do. A report says who waits for what."""


class WaitTimeout(ShmemError, TimeoutError):
    """A host has waited for longer than `set_timeout`, or `--timeout`, allows."""


class KernelError(ShmemError, RuntimeError):
    """A kernel thread failed; the message names kernel, block, thread and source line."""


class BackendUnavailable(ShmemError, RuntimeError):
    """The backend asked for cannot be used here; the message says why and what to install."""


class BootstrapError(ShmemError, RuntimeError):
    """The job's PEs did not find each other; the message says who is missing, or what is."""
