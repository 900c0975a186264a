"""Ranges that kernels name: events of the trace; nothing where the job is not traced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import types

from gpushmem.backends.codegen import with_signature
from gpushmem.backends.cpu.operations.access import LANES_OF, leads
from gpushmem.backends.cpu.operations.hook import is_traced, trace
from gpushmem.native.memory import i64, intrinsic, ticks
from gpushmem.ops import Op
from gpushmem.simt.functions import call_device, device
from gpushmem.trace.instrumentation import append, closed
from gpushmem.trace.ring import NO_PE, RANGE

__all__ = ["MEANINGS"]


@device
def start(name, lanes):
    """The number of a new range's event plus 1, if the thread leads; else 0."""
    if not leads(lanes):
        return 0
    return 1 + append(trace(), RANGE, NO_PE, -1, name, 0, ticks(), 0)


@device
def end(number):
    if number > 0:
        closed(trace(), number - 1)


def _start(op: Op) -> Any:
    def define(typingctx: Any, name: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            if not is_traced():
                return i64(0)
            text = context.insert_site(builder.module, name.literal_value)
            words = [builder.ptrtoint(text, i64), i64(LANES_OF[op.scope])]
            return call_device(builder, start, types.intp(types.intp, types.intp), words)

        return types.intp(name), codegen

    return _intrinsic(op, "name", define)


def _end(op: Op) -> Any:
    def define(typingctx: Any, number: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            if is_traced():
                call_device(builder, end, types.void(types.intp), args)
            return context.get_dummy_value()

        return types.void(types.intp), codegen

    return _intrinsic(op, "number", define)


def _intrinsic(op: Op, name: str, define: Callable[..., Any]) -> Any:
    made = with_signature(op.name, ["typingctx", name], lambda given: define(*given))
    return intrinsic(made, prefer_literal=True)


# Operation -> its meaning in kernels, of a row.
MEANINGS: dict[str, Callable[[Op], Any]] = {
    "trace_range_start": _start, "trace_range_end": _end,
}  # fmt: skip
