"""Loads and stores of the program's that are atomic, and may order others: as PTX's.

An order is "relaxed", "acquire" or "release", or another text, for accesses as any others; a scope
is that of a fence: the block (0), the GPU (1), the system (2). An observer sees an access that is
atomic as an atomic operation, and its order as a fence.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from llvmlite import ir
from numba.cuda import types

from gpushmem.native.memory import i64
from gpushmem.simt.compiler import observer
from gpushmem.simt.compiler.target import observe_access
from gpushmem.simt.intrinsics.nvvm import tell

__all__ = ["load_word", "store_word"]

ORDERS = {"relaxed": "monotonic", "acquire": "acquire", "release": "release"}
SYSTEM = 2


def load_word(builder: Any, address: Any, bits: int, order: str, scope: int) -> Any:
    """The integer at an address, a multiple of its size."""
    kind = ir.IntType(bits)
    place = builder.inttoptr(address, kind.as_pointer())
    if order not in ORDERS:
        return _seen(builder, partial(builder.load, place))
    load = partial(ir.IRBuilder.load_atomic, builder, place, ORDERS[order], bits // 8)
    word = _as_one(builder, place, load, scope, observer.OR, kind(0))
    if order == "acquire":
        _fence(builder, scope)
    return word


def store_word(builder: Any, address: Any, word: Any, order: str, scope: int) -> None:
    """Set the integer at an address, a multiple of its size."""
    place = builder.inttoptr(address, word.type.as_pointer())
    if order not in ORDERS:
        _seen(builder, partial(builder.store, word, place))
        return
    if order == "release":
        _fence(builder, scope)
    store: Callable[[], Any] = partial(
        ir.IRBuilder.store_atomic, builder, word, place, ORDERS[order], word.type.width // 8
    )
    seen = observer.current()
    if seen is not None and seen.updated is not None:  # it is told what was there
        store = partial(ir.IRBuilder.atomic_rmw, builder, "xchg", place, word, ORDERS[order])
    _as_one(builder, place, store, scope, observer.SET, word)


def _as_one(
    builder: Any, place: Any, access: Callable[[], Any], scope: int, what: int, operand: Any
) -> Any:
    if observer.moves():
        return _seen(builder, partial(builder._as_one, place, access, observer.RELAXED))
    wide = scope == SYSTEM
    return _seen(builder, partial(builder._as_one, place, access, what, operand, wide=wide))


def _seen(builder: Any, access: Callable[[], Any]) -> Any:
    """An access that the observer sees, if there is one, wherever it is."""
    before = builder.simt_observe
    builder.simt_observe = None if observer.current() is None else observe_access
    found = access()
    builder.simt_observe = before
    return found


def _fence(builder: Any, scope: int) -> None:
    tell(builder, "fences", (types.intp, i64(scope)))
