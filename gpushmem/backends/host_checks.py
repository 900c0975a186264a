"""Checks of host calls by their rows, as far as the job matters: its PEs, teams and symmetric heap.

For backends that do not check while a call runs, as cpu does. `host_arguments` has looked at types
before. Of arrays only shape, dtype and flags are read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpushmem.backends.faults import (
    BAD_COMPARISON,
    BAD_ROOT,
    BAD_SIGNAL_OP,
    EMPTY,
    NO_ROOM,
    NOT_DIVISIBLE,
    error_of,
)
from gpushmem.backends.hostcalls import check_contiguous, check_copy, check_pe, check_strided
from gpushmem.ops import COMPARISONS, SIGNAL_ADD, SIGNAL_SET, Op, roles

__all__ = ["check"]

Given = dict[str, Any]


def check(
    op: Op,
    given: Given,
    n_pes: int,
    symmetric: Callable[[str, Any], None],
    members: Callable[[int], int],
) -> None:
    """Raise for invalid arguments.

    `symmetric(name, array)` raises for arrays that are not on the heap, `members(team)` is how many
    PEs a team has.
    """
    for name in op.named(roles.Pe):
        check_pe(op.name, given[name], n_pes)
    for name in op.named(roles.Comparison):
        if given[name] not in COMPARISONS:
            raise error_of(BAD_COMPARISON, op.name, given[name])
    for name in op.named(roles.SignalOp):
        if given[name] not in (SIGNAL_SET, SIGNAL_ADD):
            raise error_of(BAD_SIGNAL_OP, op.name, given[name])
    for name, role in op.arrays.items():
        if role.symmetric:
            symmetric(op.name, given[name])
        if role.first and not given[name].size:
            raise error_of(EMPTY, op.name)
    for name in op.named(roles.Remote) + op.named(roles.Views):
        check_contiguous(op.name, "the remote array", _layout(given[name]))
    collective = op.facts.meets and bool(op.arrays)
    n = members(given["team"]) if collective else 1
    if op.named(roles.Stride):
        strides = given["dst_stride"], given["src_stride"]
        nelems = n * given["nelems"]  # which in a collective are those of one part
        check_strided(op.base, _layout(given["dst"]), _layout(given["src"]), *strides, nelems)
    elif collective:
        _check_parts(op, given, n)
    elif op.named(roles.Remote):
        _check_copy(op, given)


def _layout(array: Any) -> Any:
    """The array as one of NumPy's, which an array in a GPU's memory has."""
    return getattr(array, "layout", array)


def _check_copy(op: Op, given: Given) -> None:
    """Raise unless all of the local array fits into the remote one, or comes from it."""
    dst, src = _layout(given["dst"]), _layout(given["src"])
    if op.named(roles.Source):
        check_copy(op.name, dst, src, "target", dst.size, src.size)
    else:
        check_copy(op.name, dst, src, "source", src.size, dst.size)
    for name in op.local:
        check_contiguous(op.name, name, _layout(given[name]))


def _check_parts(op: Op, given: Given, n: int) -> None:
    """Raise if `src` has no equal parts, or `dst` is too small; `n` is the size of the team."""
    name, dst, src = op.base, given["dst"], given["src"]
    if name == "broadcast" and not 0 <= given["root"] < n:
        raise error_of(BAD_ROOT, name, given["root"], n - 1)
    if name in ("alltoall", "reducescatter") and src.size % n:
        raise error_of(NOT_DIVISIBLE, name, src.size, n)
    needed = {"fcollect": n * src.size, "reducescatter": src.size // n}.get(name, src.size)
    if dst.size < needed:
        raise error_of(NO_ROOM, name, dst.size, needed)
