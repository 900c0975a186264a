"""Atomic operations on one element of a symmetric array, in kernels and on the host.

Both sides compile the same instruction, so they are atomic with each other, and with the
`cuda.atomic` operations of kernels. Memory order: sequentially consistent, which on x86-64 is what
a locked instruction costs anyway; programs may not rely on it.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numba import from_dtype, types

from gpushmem.artifacts.arguments import address_of
from gpushmem.backends import accepts
from gpushmem.backends.cpu.access import (
    UNALIGNED,
    aligned,
    error_of,
    itemsize_of,
    remote_element,
)
from gpushmem.backends.cpu.access import address_of as address_of_array
from gpushmem.backends.cpu.journal import SIGNALS, note_word
from gpushmem.errors import ArgumentError
from gpushmem.simt.base.native import c_function, intrinsic

__all__ = ["BODIES", "host"]

ORDER = "seq_cst"
FLOAT_OPS = {"add": "fadd", "xchg": "xchg"}


def _pointer(context: Any, builder: Any, address: Any, typ: Any) -> Any:
    return builder.inttoptr(address, context.get_data_type(typ).as_pointer())


def _update(op: str) -> Any:
    @intrinsic
    def update(typingctx: Any, address: Any, value: Any) -> Any:
        """Change the element at `address`; returns what it was."""

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


class Form(NamedTuple):
    """What an operation does to the element."""

    update: Any  # intrinsic
    params: tuple[str, ...] = ("value",)  # between `dst` and `pe`

    @property
    def given(self) -> tuple[str, ...]:
        """What the intrinsic gets: without parameters a 1, to add, or just for its type."""
        return self.params or ("1",)


CHANGES = {"add": add, "and": and_, "or": or_, "xor": xor}
FORMS = {
    "fetch": Form(fetch, ()),
    "set": Form(swap),
    "swap": Form(swap),
    "compare_swap": Form(compare_swap, ("cond", "value")),
    "inc": Form(add, ()),
    "fetch_inc": Form(add, ()),
    **{form + op: Form(change) for op, change in CHANGES.items() for form in ("", "fetch_")},
}
RETURNING = {"fetch", "swap", "compare_swap", *(op for op in FORMS if op.startswith("fetch_"))}


# --- in kernels


@intrinsic
def element(typingctx: Any, array: Any, value: Any) -> Any:
    """`value` as an element of `array`."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return args[1]

    return array.dtype(array, array.dtype), codegen


BODY = """
def atomic_{op}({params}):
    target = aligned(remote_element(dst, pe), itemsize_of(dst))
    {note}
    {give}update(target, {values})
"""


def _body(op: str) -> Any:
    form = FORMS[op]
    text = BODY.format(
        op=op, params=", ".join(("dst", *form.params, "pe")),
        note="note_word(address_of_array(dst), pe, SIGNALS)" if op != "fetch" else "",
        give="return " if op in RETURNING else "",
        values=", ".join(f"element(dst, {value})" for value in form.given),
    )  # fmt: skip
    scope = {
        "update": form.update, "element": element,
        "remote_element": remote_element, "aligned": aligned, "itemsize_of": itemsize_of,
        "note_word": note_word, "address_of_array": address_of_array, "SIGNALS": SIGNALS,
        "__name__": __name__,
    }  # fmt: skip
    exec(text, scope)  # noqa: S102
    return scope[f"atomic_{op}"]


BODIES = [_body(op) for op in FORMS]


# --- on the host


@cache
def _compiled(name: str, update: Any, dtype: Any, n: int) -> Any:
    """`update` as a C function of an address and `n` values, which returns what was there."""

    def one(address: Any, value: Any) -> Any:
        return update(address, value)

    def two(address: Any, cond: Any, value: Any) -> Any:
        return update(address, cond, value)

    typ, c_type = from_dtype(dtype), np.ctypeslib.as_ctypes_type(dtype)
    function = c_function(typ(types.intp, *[typ] * n), one if n == 1 else two, name)
    return function.callable(c_type, ctypes.c_int64, *[c_type] * n)


def host(name: str, target: np.ndarray[Any, Any], arguments: dict[str, Any]) -> Any:
    """Operate on element 0 of `target`; returns a NumPy scalar, or None."""
    op = name.removeprefix("atomic_")
    if target.dtype.name not in accepts.ATOMIC[op]:
        raise ArgumentError(accepts.atomic_refusal(op, target.dtype))
    if not target.flags.aligned:
        raise error_of(UNALIGNED, name, address_of(target), target.itemsize)
    form, scalar = FORMS[op], target.dtype.type
    given = [scalar(arguments[v] if v in arguments else int(v)) for v in form.given]
    update = _compiled(op, form.update, target.dtype, len(given))
    old = update(address_of(target), *(value.item() for value in given))
    return scalar(old) if op in RETURNING else None
