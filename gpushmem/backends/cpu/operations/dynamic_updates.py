"""Updates of words, and copies, by code that learns what to do when it runs."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from gpushmem.native.internal import internal
from gpushmem.native.memory import copy_bytes, i64, intrinsic
from gpushmem.native.structs import view

__all__ = [
    "ADD", "AND", "COMPARE", "FETCH", "FLOAT_ADD", "NOTHING", "OR", "SET", "XOR", "copy_piece",
    "update_word",
]  # fmt: skip

NOTHING, SET, ADD, AND, OR, XOR, FETCH, COMPARE, FLOAT_ADD = range(9)  # `what`
INSTRUCTIONS = {SET: "xchg", ADD: "add", AND: "and", OR: "or", XOR: "xor", FLOAT_ADD: "fadd"}

word = types.intp
as_word, as_half, as_quarter = (view(np.dtype([("v", f"i{n}")])) for n in (8, 4, 2))


@intrinsic
def update_word(
    typingctx: Any, address: Any, what: Any, nbytes: Any, value: Any, compare: Any
) -> Any:
    """Change a word as `what` says; return what it held.

    Atomic, and what was written before is visible with it.
    """

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        address, what, nbytes, value, compare = args
        held = builder.alloca(i64)

        def narrow(number: Any, size: int) -> Any:
            return number if size == 8 else builder.trunc(number, ir.IntType(8 * size))

        def changed(code: int, size: int) -> Any:
            kind: Any = ir.IntType(8 * size)
            new = narrow(value, size)
            if code == FLOAT_ADD:
                kind = ir.FloatType() if size == 4 else ir.DoubleType()
                new = builder.bitcast(new, kind)
            place = builder.inttoptr(address, kind.as_pointer())
            if code == COMPARE:
                old = builder.cmpxchg(place, narrow(compare, size), new, "seq_cst", "seq_cst")
                return builder.extract_value(old, 0)
            if code == FETCH:
                return builder.load_atomic(place, "seq_cst", size)
            old = builder.atomic_rmw(INSTRUCTIONS[code], place, new, "seq_cst")
            return builder.bitcast(old, ir.IntType(8 * size)) if code == FLOAT_ADD else old

        for code in (*INSTRUCTIONS, FETCH, COMPARE):
            for size in (4, 8) if code == FLOAT_ADD else (1, 2, 4, 8):
                one = builder.and_(
                    builder.icmp_signed("==", what, i64(code)),
                    builder.icmp_signed("==", nbytes, i64(size)),
                )
                with builder.if_then(one):
                    old = changed(code, size)
                    builder.store(old if size == 8 else builder.zext(old, i64), held)
        return builder.load(held)

    return word(word, word, word, word, word), codegen


@internal
def copy_piece(target: int, source: int, nbytes: int) -> None:
    """Copy, a number in one piece."""
    aligned = (target | source) & (nbytes - 1) == 0
    if nbytes == 8 and aligned:
        as_word(target).v = as_word(source).v
    elif nbytes == 4 and aligned:
        as_half(target).v = as_half(source).v
    elif nbytes == 2 and aligned:
        as_quarter(target).v = as_quarter(source).v
    else:
        copy_bytes(target, source, nbytes)
