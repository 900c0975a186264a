"""What PTX defines and LLVM leaves open: conversions of floats out of range, counts of shifts.

`SimtBuilder` writes these where Numba asks for LLVM's instruction; with constants nothing is added.

Source: PTX ISA 9.0, `cvt`, `shl`, `shr`.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

__all__ = ["shifted", "to_integer"]

i16 = ir.IntType(16)
SUFFIX = {ir.HalfType(): "f16", ir.FloatType(): "f32", ir.DoubleType(): "f64"}


def to_integer(builder: Any, op: str, value: ir.Value, typ: Any) -> ir.Value:
    """A float as an integer: `op` is "fptosi" or "fptoui". What does not fit is clamped.

    Of NaN it is 0, or the highest bit alone if either of both has 64 bits. PTX has no conversion to
    8 bits: it is one to 16, of which the lower half is left.
    """
    wide = typ if typ.width > 8 else i16
    name = f"llvm.{op}.sat.i{wide.width}.{SUFFIX[value.type]}"
    result = builder.call(_function(builder, name, wide, value.type), [value])
    if wide.width == 64 or isinstance(value.type, ir.DoubleType):
        nan = builder.fcmp_unordered("uno", value, value)
        result = builder.select(nan, wide(1 << wide.width - 1), result)
    return result if wide is typ else builder.trunc(result, typ)


def shifted(builder: Any, op: str, value: ir.Value, count: ir.Value, shift: Any) -> ir.Value:
    """A value shifted by `shift(value, count)`, that of `op`, but by no more bits than it has.

    The count is one of 32 bits, without a sign, as PTX's.
    """
    bits = value.type.width
    if isinstance(count, ir.Constant) and isinstance(count.constant, int):
        if 0 <= count.constant < bits:
            return shift(value, count)
        count = count.type(count.constant & 0xFFFFFFFF)
    elif bits > 32:
        count = builder.and_(count, count.type(0xFFFFFFFF))
    if op == "ashr":
        least = _function(builder, f"llvm.umin.i{bits}", value.type, value.type, value.type)
        return shift(value, builder.call(least, [count, count.type(bits - 1)]))
    fits = builder.icmp_unsigned("<", count, count.type(bits))
    return builder.select(fits, shift(value, count), value.type(0))


def _function(builder: Any, name: str, result: Any, *args: Any) -> ir.Function:
    found = builder.module.globals.get(name)
    return found or ir.Function(builder.module, ir.FunctionType(result, args), name)
