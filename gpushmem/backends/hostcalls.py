"""What the host's calls of operations have in common on all backends: checks, and kernels of them.

An operation that the host calls may run as a kernel of one thread, made here from the table: so it
has one implementation, which the host's calls share with kernels.
"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from gpushmem.errors import ArgumentError, SymmetryError
from gpushmem.ops import Op
from gpushmem.ops.row import ON_THE_HOST
from gpushmem.ops.team import Team

__all__ = [
    "caller",
    "check_contiguous",
    "check_copy",
    "check_members",
    "check_pe",
    "check_strided",
    "copy_from",
    "copy_strided",
    "copy_to",
    "fitting",
    "given",
    "not_symmetric",
    "result_dtype",
]

Array = np.ndarray[Any, Any]

CALL = """
def {name}(out, {params}):
    {out}operation({arguments})
"""


def caller(op: Op, params: tuple[str, ...], words: dict[str, str], returns: bool) -> Any:
    """A kernel's function that calls the operation with `params`, of which `words` are literals.

    Its first parameter is an array for what the operation returns, if it does.
    """
    text = CALL.format(
        name=op.name, params=", ".join(p for p in params if p not in words),
        out="out[0] = " if returns else "",
        arguments=", ".join(repr(words.get(p)) if p in words else p for p in params),
    )  # fmt: skip
    scope: dict[str, Any] = {"operation": op.function, "__name__": __name__}
    exec(text, scope)  # noqa: S102
    scope[op.name].__name__ = f"{op.name}{ON_THE_HOST}"
    return scope[op.name]


def given(op: Op, arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments as a kernel's: a team is a number, for whoever gives it.

    Without a timeout that is None: what waits for ever is another kernel.
    """
    return {
        k: int(v) if isinstance(v, Team) else v
        for k, v in arguments.items()
        if k != "timeout_ns" or v is not None
    }


def result_dtype(op: Op, arguments: dict[str, Any]) -> Any:
    """The dtype of what a call returns, None if it returns nothing."""
    dtype = op.result(timed=arguments.get("timeout_ns") is not None)
    return arguments[next(iter(op.arrays))].dtype if dtype == "element" else dtype


def fitting(name: str, value: Any, dtype: np.dtype[Any]) -> int:
    """`value` as an integer that `dtype` can hold; raises `ArgumentError` if it is none."""
    try:
        number = operator.index(value)
    except TypeError:
        raise ArgumentError(f"{name}: value must be an integer, not {value!r}") from None
    if dtype.kind in "iu" and not np.iinfo(dtype).min <= number <= np.iinfo(dtype).max:
        raise ArgumentError(f"{name}: value {number} is outside of the range of {dtype}")
    return number


# --- checks of arguments. Of arrays only shape, dtype and flags are looked at.


def check_pe(name: str, pe: Any, n_pes: int) -> None:
    """Refuse what is not a PE's number."""
    if not hasattr(pe, "__index__") or not 0 <= pe < n_pes:
        raise ArgumentError(f"{name}: there is no PE {pe!r}: PEs are 0 to {n_pes - 1}")


def check_members(name: str, pes: list[int], my_pe: int, n_pes: int) -> None:
    """Refuse what is no list of the members of a team that the calling PE is in."""
    for pe in pes:
        check_pe(name, pe, n_pes)
        if pes.count(pe) > 1:
            raise ArgumentError(f"{name}: PE {pe} is in the list {pes.count(pe)} times: {pes}")
    if my_pe not in pes:
        raise ArgumentError(
            f"{name}: the calling PE, {my_pe}, is not in the list {pes}: only its members call"
        )


def check_contiguous(name: str, which: str, array: Array) -> None:
    """Refuse arrays with gaps."""
    if not array.flags.c_contiguous:
        raise ArgumentError(
            f"{name}: {which} is not contiguous (shape {array.shape}, strides {array.strides}): "
            "give the array it is part of to iput or iget, or copy it to an array that is"
        )


def check_copy(name: str, dst: Any, src: Any, which: str, have: int, want: int) -> None:
    """Refuse copies that do not fit; `which` array has to have `want` elements."""
    if not isinstance(dst, np.ndarray):
        raise ArgumentError(f"{name}: dst must be an array, not {type(dst).__name__}")
    if dst.dtype != src.dtype:
        raise ArgumentError(
            f"{name}: dst is {dst.dtype}, src is {src.dtype}; they must have the same dtype"
        )
    if have < want:
        raise ArgumentError(
            f"{name}: the {which} has {have} elements, {want} are to be copied: pass a slice"
        )


def check_strided(
    name: str, dst: Any, src: Any, dst_stride: int, src_stride: int, nelems: int
) -> None:
    """Refuse strided copies that do not fit."""
    check_copy(name, dst, src, "", 0, 0)
    if min(dst_stride, src_stride) < 1 or nelems < 0:
        raise ArgumentError(
            f"{name}: strides must be 1 or more, not {dst_stride} and {src_stride}; a number of "
            f"elements 0 or more, not {nelems}"
        )
    for array, stride in ((dst, dst_stride), (src, src_stride)):
        reached = (nelems - 1) * stride + 1 if nelems else 0
        if reached > array.size:
            raise ArgumentError(
                f"{name}: element {reached - 1} is outside of an array of {array.size} elements"
            )
        if not array.flags.c_contiguous:
            raise ArgumentError(f"{name}: both arrays must be contiguous")


def not_symmetric(name: str, array: Any) -> SymmetryError:
    """What is said of a remote array that is none."""
    kind = f"{type(array).__name__} {getattr(array, 'shape', '')}".strip()
    return SymmetryError(
        f"{name}: the remote array ({kind}) is not on the symmetric heap: "
        "allocate it with gpushmem.empty or zeros"
    )


# --- copies of memory that the host reaches; `target` and `source` are the remote elements


def copy_to(name: str, target: Array, src: Array) -> None:
    """Copy all of `src` to the first elements of `target`."""
    check_copy(name, target, src, "target", target.size, src.size)
    check_contiguous(name, "src", src)
    target[: src.size] = src.reshape(-1)


def copy_from(name: str, dst: Array, source: Array) -> None:
    """Copy the first elements of `source` to all of `dst`."""
    check_copy(name, dst, source, "source", source.size, dst.size)
    check_contiguous(name, "dst", dst)
    dst.reshape(-1)[:] = source[: dst.size]


def copy_strided(
    name: str, dst: Any, src: Any, dst_stride: int, src_stride: int, nelems: int
) -> None:
    """Copy `nelems` elements with strides."""
    check_strided(name, dst, src, dst_stride, src_stride, nelems)
    target, source = (
        array.reshape(-1)[: (nelems - 1) * stride + 1 if nelems else 0 : stride]
        for array, stride in ((dst, dst_stride), (src, src_stride))
    )
    target[:] = source
