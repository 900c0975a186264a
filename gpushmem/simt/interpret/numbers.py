"""Numbers in kernels, which compute as Numba types them.

An element of an array is a NumPy scalar. Numba computes with integers in 64 bits, NumPy in those of
the operands: so a signed integer is an `np.int64`, of a class that tells its width, and an unsigned
one an `Unsigned`, which asks Numba's typing for the type of each result.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numba.cuda import types
from numba.cuda.np import numpy_support

from gpushmem.simt.compiler.target import compiling, simt_target

__all__ = ["READ", "UNSIGNED", "Cast", "Unsigned", "dtype_of", "fitted", "numba_type", "number"]

BINARY = (
    "add", "sub", "mul", "floordiv", "truediv", "mod", "pow", "and_", "or_", "xor", "lshift",
    "rshift",
)  # fmt: skip
UNARY = "neg", "pos", "invert"


class Unsigned(int):
    """An unsigned integer; a class for each width."""

    __array_ufunc__ = None  # NumPy's scalars leave operators to this class
    bits = 64


UNSIGNED = {
    bits: type(f"uint{bits}", (Unsigned,), {"bits": bits, "__slots__": ()})
    for bits in (8, 16, 32, 64)
}
SIGNED = {bits: type(f"int{bits}", (np.int64,), {"__slots__": ()}) for bits in (8, 16, 32)}
SIGNED[64] = np.int64
KEPT = 1 << 16  # numbers of a class: to make one takes longer than to find it


def _class_of(dtype: np.dtype[Any]) -> Any:
    return (SIGNED if dtype.kind == "i" else UNSIGNED)[8 * dtype.itemsize]


# NumPy's class of a scalar -> what it becomes; others stay as they are.
READ: dict[type, Callable[[Any], Any]] = {
    np.bool_: bool,
    **{
        cls: lru_cache(KEPT)(made)
        for code in "bhilqpBHILQP"
        if (made := _class_of(np.dtype(code))) is not (cls := np.dtype(code).type)
    },
}
PLAIN = {bool: types.boolean, int: types.int64, float: types.float64, complex: types.complex128}
PLAIN |= {cls: getattr(types, f"uint{bits}") for bits, cls in UNSIGNED.items()}
PLAIN |= {cls: getattr(types, f"int{bits}") for bits, cls in SIGNED.items()}
_results: dict[tuple[Any, ...], Callable[..., Any]] = {}  # (operator, classes of the operands)


def number(value: Any) -> Any:
    """A NumPy scalar as a number in a kernel."""
    make = READ.get(value.__class__)
    return value if make is None else make(value)


def numba_type(value: Any) -> Any:
    """The Numba type of a number."""
    known = PLAIN.get(value.__class__)
    return numpy_support.from_dtype(np.dtype(value.__class__)) if known is None else known


def dtype_of(typ: Any) -> np.dtype[Any]:
    """The dtype that a kernel names: as Numba's type, NumPy's, or a `Cast`."""
    if isinstance(typ, Cast):
        return typ.dtype
    return numpy_support.as_dtype(typ) if isinstance(typ, types.Type) else np.dtype(typ)


def fitted(value: Any, dtype: np.dtype[Any]) -> Any:
    """The value as a NumPy scalar of a dtype; integers wrap around, as in a conversion in C."""
    if dtype.kind not in "iu":
        return dtype.type(value)
    bits = 8 * dtype.itemsize
    whole = clamped(value, dtype) if isinstance(value, FLOATS) else int(value)
    whole &= (1 << bits) - 1
    return dtype.type(whole - (1 << bits) if dtype.kind == "i" and whole >> (bits - 1) else whole)


FLOATS = float, np.floating


def clamped(value: Any, dtype: np.dtype[Any]) -> int:
    """A float as an integer of a dtype, or of 16 bits: as `compiler.arithmetic` has it."""
    bits, signed = max(8 * dtype.itemsize, 16), dtype.kind == "i"
    if value != value:  # noqa: PLR0124  (NaN)
        return 1 << bits - 1 if bits == 64 or isinstance(value, float) else 0
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    return low if value <= low else high if value >= high else int(value)


class Cast:
    """A type as a kernel uses it: as a function, or to name the type of an array's elements."""

    def __init__(self, original: Any) -> None:
        self.original, self.dtype = original, dtype_of(original)

    def __call__(self, value: Any = 0) -> Any:
        return number(fitted(value, self.dtype))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.original, name)

    def __repr__(self) -> str:
        return repr(self.original)


def _computed(op: Callable[..., Any], *operands: Any) -> Any:
    key = (op, *(operand.__class__ for operand in operands))
    compute = _results.get(key)
    if compute is None:
        compute = _results[key] = _rule(op, tuple(map(numba_type, operands)))
    return compute(*operands)


def _rule(op: Callable[..., Any], argtypes: tuple[Any, ...]) -> Callable[..., Any]:
    """How an operator's result is computed: in which type, by Numba's typing."""
    with compiling():
        context = simt_target.typing_context
        context.refresh()
        signature = context.resolve_function_type(op, argtypes, {})
    dtype = numpy_support.as_dtype(signature.return_type)
    inside = [numpy_support.as_dtype(typ) for typ in signature.args]
    if dtype.kind in "iu" and len(inside) == 1:  # which is computed in the operand's bits
        return lambda operand: number(fitted(fitted(op(int(operand)), inside[0]), dtype))
    if op in (operator.lshift, operator.rshift):  # by 64 bits at most: see `compiler.arithmetic`
        return lambda a, by: number(fitted(op(int(a), min(int(by) & 0xFFFFFFFF, 64)), dtype))
    if dtype.kind in "iu":
        return lambda *operands: number(fitted(op(*map(int, operands)), dtype))
    return lambda *operands: op(*(t.type(v) for t, v in zip(inside, operands, strict=True)))


def _operators() -> None:
    for name in BINARY:
        op = getattr(operator, name)
        plain = name.rstrip("_")
        forward, backward = (
            lambda self, other, op=op: _computed(op, self, other),
            lambda self, other, op=op: _computed(op, other, self),
        )
        setattr(Unsigned, f"__{plain}__", forward)
        setattr(Unsigned, f"__r{plain}__", backward)
    for name in UNARY:
        op = getattr(operator, name)
        setattr(Unsigned, f"__{name}__", lambda self, op=op: _computed(op, self))


_operators()
