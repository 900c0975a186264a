"""Atomic operations on one element of a symmetric array, in kernels and on the host.

Both sides compile the same instruction, so they are atomic with each other, and with the
`cuda.atomic` operations of kernels. Memory order: sequentially consistent, which on x86-64 is what
a locked instruction costs anyway; programs may not rely on it.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numpy as np
from numba import from_dtype, types

from gpushmem.artifacts.argument_packing import address_of
from gpushmem.backends.cpu.operations.access import aligned, itemsize_of, remote_element
from gpushmem.backends.operation_errors import UNALIGNED, error_of
from gpushmem.native.c_function import c_function
from gpushmem.native.memory import intrinsic
from gpushmem.ops import OPS, Op
from gpushmem.simt.functions import device

__all__ = ["BODIES", "host"]

ORDER = "seq_cst"
FLOAT_OPS = {"add": "fadd", "xchg": "xchg"}


def _pointer(context: Any, builder: Any, address: Any, typ: Any) -> Any:
    return builder.inttoptr(address, context.get_data_type(typ).as_pointer())


def _update(op: str) -> Any:
    @intrinsic
    def update(typingctx: Any, address: Any, value: Any) -> Any:
        """Change the element at `address`; returns the old value."""

        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            pointer = _pointer(context, builder, args[0], value)
            kind = FLOAT_OPS[op] if isinstance(value, types.Float) else op
            return builder.atomic_rmw(kind, pointer, args[1], ORDER)

        return value(types.intp, value), codegen

    return update


@intrinsic
def fetch(typingctx: Any, address: Any, like: Any) -> Any:
    """Read the element at `address`, of the type of `like`."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        pointer = _pointer(context, builder, args[0], like)
        return builder.load_atomic(pointer, ORDER, like.bitwidth // 8)

    return like(types.intp, like), codegen


@intrinsic
def compare_swap(typingctx: Any, address: Any, condition: Any, value: Any) -> Any:
    """Write `value` to `address` if `condition` is there; returns what was there."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        pointer = _pointer(context, builder, args[0], value)
        result = builder.cmpxchg(pointer, args[1], args[2], ORDER, ORDER)
        return builder.extract_value(result, 0)

    return value(types.intp, value, value), codegen


add, and_, or_, xor, swap = (_update(op) for op in ("add", "and", "or", "xor", "xchg"))


# Operation -> the change; those without a value add 1, or get one for its type.
CHANGES = {"add": add, "and": and_, "or": or_, "xor": xor}
UPDATES = {
    "fetch": fetch,
    "set": swap,
    "swap": swap,
    "compare_swap": compare_swap,
    "inc": add,
    "fetch_inc": add,
    **{form + op: change for op, change in CHANGES.items() for form in ("", "fetch_")},
}
ROWS = {f"atomic_{op}": update for op, update in UPDATES.items()}


# --- in kernels


@intrinsic
def element(typingctx: Any, array: Any, value: Any) -> Any:
    """`value` as an element of `array`."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return args[1]

    return array.dtype(array, array.dtype), codegen


@device
def place_of(dst, pe):
    return aligned(remote_element(dst, pe), itemsize_of(dst))


def _body(row: Op) -> Any:
    """A row's function, with the row's parameters; returns the old value if the row does."""
    update, returns = ROWS[row.name], row.returns.dtype is not None

    def if_it_is(dst, cond, value, pe):
        return update(place_of(dst, pe), element(dst, cond), element(dst, value))

    def by(dst, value, pe):
        update(place_of(dst, pe), element(dst, value))

    def exchange(dst, value, pe):
        return update(place_of(dst, pe), element(dst, value))

    def by_one(dst, pe):
        update(place_of(dst, pe), element(dst, 1))

    def exchange_by_one(dst, pe):
        return update(place_of(dst, pe), element(dst, 1))

    if "cond" in row.params:
        return if_it_is
    if "value" in row.params:
        return exchange if returns else by
    return exchange_by_one if returns else by_one


BODIES = {name: _body(OPS[name]) for name in ROWS}


# --- on the host


@cache
def _compiled(op: Op, dtype: Any) -> Any:
    """The update as a C function of an address and the values; returns the old one."""
    update, n = ROWS[op.name], 2 if "cond" in op.params else 1

    def one(address: Any, value: Any) -> Any:
        return update(address, value)

    def two(address: Any, cond: Any, value: Any) -> Any:
        return update(address, cond, value)

    typ, c_type = from_dtype(dtype), np.ctypeslib.as_ctypes_type(dtype)
    function = c_function(typ(types.intp, *[typ] * n), one if n == 1 else two, op.name)
    return function.callable(c_type, ctypes.c_int64, *[c_type] * n)


def host(op: Op, target: np.ndarray[Any, Any], arguments: dict[str, Any]) -> Any:
    """Operate on element 0 of `target`; returns a NumPy scalar, or None."""
    if not target.flags.aligned:
        raise error_of(UNALIGNED, op.name, address_of(target), target.itemsize)
    scalar = target.dtype.type
    given = [scalar(value) for value in arguments.values()] or [scalar(1)]  # in the row's order
    old = _compiled(op, target.dtype)(address_of(target), *(value.item() for value in given))
    return scalar(old) if op.returns.dtype is not None else None
