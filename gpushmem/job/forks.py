"""Processes that a PE forks, with `os.fork` or `multiprocessing`: they are not that PE.

A child has a copy of the PE's memory and the same shared memory, but none of the PE's threads. A
call of its own would take the PE's place where PEs meet, or wait for a thread that is not there. So
what belongs to the PE is of another class in the child, in which every use is an error. Copies that
gpushmem makes of itself (`beside.fork`) are no such children.
"""

from __future__ import annotations

import os
import weakref
from typing import Any, TypeVar

from gpushmem.background import children_of_users
from gpushmem.errors import NotInitializedError
from gpushmem.job.job import adopt

__all__ = ["belongs", "check", "is_child", "may_begin", "note"]

T = TypeVar("T")
_belongings: weakref.WeakSet[Any] = weakref.WeakSet()
_pe: list[tuple[int, int, bool]] = []  # this process's number, of so many, and `alone`
_parent: list[tuple[int, int, bool]] = []  # the same of the PE that has forked it


def note(my_pe: int, n_pes: int, alone: bool) -> None:
    """Note which PE this process is; if it is a job by itself, `alone`, so may its children be."""
    _pe[:] = [(my_pe, n_pes, alone)]


def belongs(value: T) -> T:
    """Return `value`, of which a forked child cannot make use."""
    _belongings.add(value)
    return value


def is_child() -> bool:
    """Whether a PE has forked this process."""
    return bool(_parent)


def may_begin() -> bool:
    """Whether this process may call `init`."""
    return all(alone for _, _, alone in _parent)


def check(what: str) -> None:
    """Raise if a PE has forked this process, naming the call."""
    if _parent:
        raise _error(f"{what}: ")


def _error(what: str) -> NotInitializedError:
    pe, n_pes, _ = _parent[0]
    return NotInitializedError(
        f"{what}process {os.getpid()} was forked from PE {pe} of {n_pes}, and is not a PE itself: "
        "only the PE may use its arrays, kernels and groups. Give children NumPy arrays, and take "
        "their results back through pipes or queues, as multiprocessing does"
    )


class _OfTheParent:
    """What something of the PE's is in a child."""

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("__"):
            return object.__getattribute__(self, name)
        raise _error("")


def _in_a_child() -> None:
    if not _pe:
        return
    _parent[:], _pe[:] = _pe, []
    adopt(None)
    for value in list(_belongings):
        value.__class__ = _OfTheParent
    _belongings.clear()


children_of_users(_in_a_child)
