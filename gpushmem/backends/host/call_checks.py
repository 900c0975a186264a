"""Checks of host calls, as far as the job matters: its PEs, its teams, its symmetric heap.

`check` checks a call by its row. The cpu backend makes single checks while a call runs. Types have
been looked at before (`call_arguments`). Of arrays only shape, dtype and flags are read.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from gpushmem.arguments import by_rows
from gpushmem.backends.operation_errors import (
    BAD_COMPARISON,
    BAD_PE,
    BAD_ROOT,
    BAD_SHAPES,
    BAD_SIGNAL_OP,
    BAD_STRIDE,
    EMPTY,
    NO_ROOM,
    NOT_BY_ROWS,
    NOT_DIVISIBLE,
    OUTSIDE,
    error_of,
)
from gpushmem.errors import ArgumentError, ArgumentTypeError, SymmetryError
from gpushmem.ops import COMPARISONS, SIGNAL_ADD, SIGNAL_SET, Op, roles

__all__ = [
    "check",
    "check_buffer",
    "check_contiguous",
    "check_copy",
    "check_members",
    "check_not_on_heap",
    "check_pe",
    "check_product",
    "check_strided",
    "checked_integer",
    "not_symmetric",
    "unreachable",
]

Array = np.ndarray[Any, Any]
CODES_AT_ONCE = 16  # 8-bit floats

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


# --- single checks, for backends that do them while a call runs


def checked_integer(name: str, value: Any, dtype: np.dtype[Any]) -> int:
    """`value` as an integer; raises `ArgumentError` unless it is one that `dtype` can hold."""
    try:
        number = operator.index(value)
    except TypeError:
        raise ArgumentError(f"{name}: value must be an integer, not {value!r}") from None
    if dtype.kind in "iu" and not np.iinfo(dtype).min <= number <= np.iinfo(dtype).max:
        raise ArgumentError(f"{name}: value {number} is outside of the range of {dtype}")
    return number


def check_product(name: str, axes: int | None, dst: Any, a: Any, b: Any, *scales: Any) -> None:
    """Raise unless three matrices fit each other, with strides that a product can have.

    With `scales`, of a and b, these are 8-bit floats; with three axes there are several of each.
    """
    dst, a, b = three = tuple(map(_layout, (dst, a, b)))
    differ = not scales and {x.dtype for x in (a, b)} != {dst.dtype}
    if {x.ndim for x in three} != {axes} or differ or len({x.shape[:-2] for x in three}) > 1:
        said = ", ".join(f"{x.dtype} of shape {x.shape}" for x in three)
        several = ", as many each" if axes == 3 else ""
        raise ArgumentTypeError(
            f"{name}: dst, a and b must be matrices of one dtype{several}, not {said}"
        )
    (m, n), (rows, inner), (terms, columns) = (x.shape[-2:] for x in three)
    if (rows, columns, inner) != (m, n, terms):
        raise error_of(BAD_SHAPES, name, rows << 32 | inner, terms << 32 | columns, m, n)
    for matrix, turned in (dst, False), (a, True), (b, True):
        if not (by_rows(matrix) or (turned and by_rows(matrix.swapaxes(-1, -2)))):
            raise error_of(NOT_BY_ROWS, name, *matrix.strides[-2:], 0, 0)
    if axes == 3 and (not inner or any(x.strides[0] % x.itemsize for x in three)):
        steps = ", ".join(str(x.strides[0]) for x in three)
        raise ArgumentError(
            f"{name}: k is {inner}, matrices are {steps} bytes apart: k must be 1 or more, and "
            "matrices whole elements apart"
        )
    if scales:
        _check_codes(name, dst, a, b)
        _check_scales(name, *dst.shape, *map(_layout, scales))


def _check_codes(name: str, dst: Any, a: Any, b: Any) -> None:
    """Raise for what cuBLASLt does not take of 8-bit floats."""
    (k, n), least = b.shape, CODES_AT_ONCE
    if k % least or n % least or not k:
        raise ArgumentError(
            f"{name}: k is {k}, n is {n}: 8-bit floats are multiplied {least} at a time, so both "
            f"must be multiples of {least}, k not 0"
        )
    for which, matrix in ("dst", dst), ("a", a), ("b", b.T):
        lines = "columns" if which == "b" else "rows"
        if not by_rows(matrix):
            raise ArgumentError(
                f"{name}: {which} has strides of {matrix.strides} bytes, of {which}.T: of 8-bit "
                f"floats {lines} of {which} are adjacent elements: "
                + ("give w.T, w being (n, k) and contiguous" if which == "b" else "copy it")
            )
        address, step = matrix.ctypes.data, matrix.strides[0] if len(matrix) > 1 else 0
        if matrix.size and (address % least or step % least):
            raise ArgumentError(
                f"{name}: {which} begins {address % least} bytes behind a multiple of {least}, and "
                f"its {lines} are {step} bytes apart; both must be multiples of {least}"
            )


def _check_scales(name: str, m: int, n: int, scale_a: Any, scale_b: Any) -> None:
    """Raise unless there is one each, or one for each row and column."""
    by_line = (scale_a.shape, scale_b.shape) == ((m, 1), (1, n))
    dense = scale_a.flags.c_contiguous and scale_b.flags.c_contiguous
    if not (scale_a.size == scale_b.size == 1 or (by_line and dense)):
        raise ArgumentError(
            f"{name}: scale_a has shape {scale_a.shape}, scale_b {scale_b.shape}; they must be one "
            f"number each, or contiguous and {(m, 1)} and {(1, n)}"
        )


def check_pe(name: str, pe: Any, n_pes: int) -> None:
    """Raise unless `pe` is the number of a PE."""
    if not hasattr(pe, "__index__") or not 0 <= pe < n_pes:
        raise error_of(BAD_PE, name, repr(pe), n_pes - 1)


def check_members(name: str, pes: list[int], my_pe: int, n_pes: int) -> None:
    """Refuse what is no list of the members of a team that the calling PE is in."""
    for pe, times in Counter(pes).items():
        check_pe(name, pe, n_pes)
        if times > 1:
            raise ArgumentError(f"{name}: PE {pe} is in the list {times} times: {pes}")
    if my_pe not in pes:
        raise ArgumentError(
            f"{name}: the calling PE, {my_pe}, is not in the list {pes}: only its members call"
        )


def check_contiguous(name: str, which: str, array: Array) -> None:
    """Raise unless the array is contiguous."""
    if not array.flags.c_contiguous:
        raise ArgumentError(
            f"{name}: {which} is not contiguous (shape {array.shape}, strides {array.strides}): "
            "give the array it is part of to iput or iget, or copy it to an array that is"
        )


def check_copy(name: str, dst: Any, src: Any, which: str, have: int, want: int) -> None:
    """Raise if a copy does not fit: `which` array has `have` elements, and needs `want`."""
    if not isinstance(dst, np.ndarray):
        raise ArgumentError(f"{name}: dst must be an array, not {type(dst).__name__}")
    if dst.dtype != src.dtype:
        raise ArgumentError(
            f"{name}: dst is an array of {dst.dtype}, src of {src.dtype}; "
            "they must have the same dtype"
        )
    if have < want:
        raise ArgumentError(
            f"{name}: the {which} has {have} elements, {want} are to be copied: pass a slice"
        )


def check_strided(
    name: str, dst: Any, src: Any, dst_stride: int, src_stride: int, nelems: int
) -> None:
    """Raise if a strided copy does not fit."""
    check_copy(name, dst, src, "", 0, 0)
    if min(dst_stride, src_stride) < 1 or nelems < 0:
        raise error_of(BAD_STRIDE, name, dst_stride, src_stride, nelems)
    for array, stride in ((dst, dst_stride), (src, src_stride)):
        reached = (nelems - 1) * stride + 1 if nelems else 0
        if reached > array.size:
            raise error_of(OUTSIDE, name, reached - 1, array.size)
        if not array.flags.c_contiguous:
            raise ArgumentError(f"{name}: both arrays must be contiguous")


def check_buffer(
    backend: str, buffer: Any, memory: Array, on_gpu: bool, on_heap: Callable[[Array], bool]
) -> None:
    """Raise for a buffer that a backend without GPUs cannot register."""
    if on_gpu:
        raise ArgumentError(
            f"register: this {type(buffer).__name__} is in a GPU's memory, which the {backend} "
            "backend does not reach: register a copy in host memory"
        )
    check_not_on_heap(memory, on_heap)


def check_not_on_heap(memory: Array, on_heap: Callable[[Array], bool]) -> None:
    """Raise for a buffer that is already symmetric."""
    if on_heap(memory):
        raise ArgumentError(
            f"register: these {memory.nbytes} bytes are on the symmetric heap already: pass "
            "the symmetric array itself"
        )


def not_symmetric(name: str, array: Any) -> SymmetryError:
    """The error for a remote array that is not symmetric."""
    kind = f"{type(array).__name__} {getattr(array, 'shape', '')}".strip()
    return SymmetryError(
        f"{name}: the remote array ({kind}) is not on the symmetric heap: "
        "allocate it with gpushmem.empty or zeros"
    )


def unreachable(name: str, pe: int, my_pe: int) -> SymmetryError:
    """The error for a PE whose memory can be reached by operations only."""
    return SymmetryError(
        f"{name}: the memory of PE {pe} cannot be reached by loads and stores from PE {my_pe}: it "
        "is not in TEAM_SHARED; use put and get"
    )
