"""Checks of host calls on GPUs, with the errors of the cpu backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from nvshmem import bindings

from gpushmem.backends.hostcalls import (
    check_contiguous,
    check_copy,
    check_pe,
    check_strided,
)
from gpushmem.errors import ArgumentError
from gpushmem.ops import COMPARISONS, SIGNAL_ADD, SIGNAL_SET, Op
from gpushmem.ops.roles import Stride

__all__ = ["check", "copied", "signal"]


def check(op: Op, given: dict[str, Any], n_pes: int, symmetric: Callable[[str, Any], None]) -> None:
    """Raise for invalid arguments; `symmetric` raises for arrays that are not on the heap."""
    if "pe" in given:
        check_pe(op.name, given["pe"], n_pes)
    if "cmp" in given and given["cmp"] not in COMPARISONS:
        raise ArgumentError(
            f"{op.name}: there is no comparison {given['cmp']}: use CMP_EQ, NE, GT, LE, LT or GE"
        )
    for name, role in op.arrays.items():
        if role.symmetric:
            symmetric(op.name, given[name])
        if role.first and not given[name].size:
            raise ArgumentError(f"{op.name}: the array has no element 0: it is empty")
    collective = op.facts.meets and bool(op.arrays)
    n = int(bindings.team_n_pes(int(given["team"]))) if collective else 1
    if op.named(Stride):
        strides = given["dst_stride"], given["src_stride"]
        nelems = n * given["nelems"]  # which in a collective are those of one part
        check_strided(op.base, given["dst"].layout, given["src"].layout, *strides, nelems)
    elif collective:
        _sizes(op, given, n)


def _sizes(op: Op, given: dict[str, Any], n: int) -> None:
    """Raise if `src` has no equal parts, or `dst` is too small; `n` is the size of the team."""
    name, dst, src = op.base, given["dst"], given["src"]
    if name == "broadcast" and not 0 <= given["root"] < n:
        raise ArgumentError(
            f"broadcast: there is no PE {given['root']} in the team to be the root: its PEs are 0 "
            f"to {n - 1}"
        )
    if name in ("alltoall", "reducescatter") and src.size % n:
        raise ArgumentError(
            f"{name}: src has {src.size} elements, which are not {n} equal parts, one for each PE "
            "of the team"
        )
    needed = {"fcollect": n * src.size, "reducescatter": src.size // n}.get(name, src.size)
    if dst.size < needed:
        raise ArgumentError(f"{name}: dst has {dst.size} elements, and needs {needed}")


def copied(name: str, dst: Any, src: Any, which: str, have: int, want: int, whole: Any) -> int:
    """Check a copy of all of `whole`, and return its bytes."""
    check_copy(name, dst.layout, src.layout, which, have, want)
    check_contiguous(name, "dst", dst.layout)
    check_contiguous(name, "src", src.layout)
    return int(whole.nbytes)


def signal(name: str, array: Any, op: Any) -> None:
    """Check a signal operation; its value has been checked by the row."""
    if op not in (SIGNAL_SET, SIGNAL_ADD):
        raise ArgumentError(
            f"{name}: there is no signal operation {op}: use SIGNAL_SET or SIGNAL_ADD"
        )
    if array.dtype != np.uint64:
        raise ArgumentError(f"{name}: signal must be an array of uint64, not {array.dtype}")
