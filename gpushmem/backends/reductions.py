"""How two elements are combined, on all backends: functions for kernels of any."""

from __future__ import annotations

from typing import Any

from numba.cuda import types

from gpushmem.ops.roles import REDUCTIONS

__all__ = ["COMBINE", "SMALL", "widened"]


def _sum(a, b):
    return a + b


def _prod(a, b):
    return a * b


def _min(a, b):
    return a if a < b or a != a else b  # noqa: PLR0124  (NaN)


def _max(a, b):
    return a if a > b or a != a else b  # noqa: PLR0124


def _and(a, b):
    return a & b


def _or(a, b):
    return a | b


def _xor(a, b):
    return a ^ b


def _maxloc(a, b):
    return a if a[0] > b[0] or (a[0] == b[0] and a[1] <= b[1]) else b


# `argument_types.REDUCTIONS` has the dtypes.
COMBINE = {
    "sum": _sum, "prod": _prod, "min": _min, "max": _max, "and": _and, "or": _or, "xor": _xor,
    "maxloc": _maxloc,
}  # fmt: skip
assert tuple(COMBINE) == REDUCTIONS

SMALL = types.float16, types.bfloat16  # that sums are computed of as float32


def widened(typingctx: Any, value: Any) -> Any:
    """The definition of an intrinsic: a float of 16 bits as float32, anything else as it is."""
    wide = types.float32 if value in SMALL else value

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return context.cast(builder, args[0], value, wide)

    return wide(value), codegen
