"""Which events a call of an operation in a kernel is: the same rule on every backend.

`call` is one call as it is compiled: `op`, the row; `argtypes` and `values` of the arguments by
name; and `integer(name)`, `offset(name)` of an array, its `place(name)`, the PE whose memory it is
in and the offset there, `nbytes(effect)`, code that computes them. All are 64-bit integers.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from gpushmem.ops.row import READS, Effect
from gpushmem.trace.ring import NO_PE

__all__ = ["of_call", "of_wait"]

i64 = ir.IntType(64)


def of_wait(call: Any) -> list[Any]:
    """Offset, value and bytes of what is waited for; of a meeting the team, and the bytes sent."""
    op = call.op
    if op.facts.meets:
        team = call.integer("team") if "team" in call.values else i64(0)
        sent = [effect for effect in op.facts.effects if effect.how == READS]
        if not sent or not _is_array(call, sent[0]):
            return [i64(-1), team, i64(0)]
        return [call.offset(sent[0].array), team, call.nbytes(sent[0])]
    name = op.facts.waits_for
    effect = next(effect for effect in op.facts.effects if effect.array == name)
    return [call.offset(name), _integer(call, "value"), call.nbytes(effect)]


def of_call(call: Any) -> list[list[Any]]:
    """PE, offset, value and bytes of each event: one for each effect on memory that PEs share.

    Of what stores where loads and stores reach, such as a copy, the PE is the memory's.
    """
    op = call.op
    pe = call.integer("pe") if "pe" in call.values else i64(NO_PE)
    stores = [e for e in op.facts.effects if e.how != READS and _is_array(call, e)]
    if stores and "pe" not in call.values and not op.arrays[stores[0].array].symmetric:
        return [[*call.place(stores[0].array), i64(0), call.nbytes(stores[0])]]
    seen = [
        effect
        for effect in op.facts.effects
        if op.arrays[effect.array].symmetric and _is_array(call, effect)
    ]
    found = [
        [pe, call.offset(effect.array), _integer(call, "value"), call.nbytes(effect)]
        for effect in seen
    ]
    return found or [[pe, i64(-1), _integer(call, "value"), i64(0)]]


def _is_array(call: Any, effect: Effect) -> bool:
    return isinstance(call.argtypes[effect.array], types.Array)


def _integer(call: Any, name: str) -> Any:
    return call.integer(name) if isinstance(call.argtypes.get(name), types.Integer) else i64(0)
