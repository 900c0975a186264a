"""Ranges that kernels name: nothing, where the job is not traced."""

from __future__ import annotations

from typing import Any

from numba.cuda import types

from gpushmem.backends.codegen import with_signature
from gpushmem.ops import Op

__all__ = ["DEFINITIONS"]


def _start(op: Op) -> Any:
    def define(typingctx: Any, name: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            return context.get_constant(types.intp, 0)

        return types.intp(name), codegen

    return with_signature(op.name, ["typingctx", "name"], lambda given: define(*given))


def _end(op: Op) -> Any:
    def define(typingctx: Any, number: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            return context.get_dummy_value()

        return types.void(types.intp), codegen

    return with_signature(op.name, ["typingctx", "number"], lambda given: define(*given))


# Operation -> the definition of its intrinsic, of a row.
DEFINITIONS = {"trace_range_start": _start, "trace_range_end": _end}
