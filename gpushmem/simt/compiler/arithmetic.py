"""What PTX defines and LLVM leaves open: floats out of an integer's range, shifts, signs of zeros.

`SimtBuilder` writes these where Numba asks for LLVM's instruction; with constants nothing is added.

Source: PTX ISA 9.0, `cvt`, `shl`, `shr`, `min`, `max`.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

__all__ = ["extremum", "shifted", "to_integer"]

f32, f64, i32, i64 = ir.FloatType(), ir.DoubleType(), ir.IntType(32), ir.IntType(64)
BELOW_ONE = {f32: 1 - 2.0**-24, f64: 1 - 2.0**-53}  # the largest number below 1


def to_integer(builder: Any, value: ir.Value, typ: Any, signed: bool) -> ir.Value:
    """A float as an integer. What does not fit is clamped.

    Of NaN it is 0, or the highest bit alone if either of both has 64 bits. PTX has no conversion to
    8 bits: it is one to 16, of which the lower half is left. LLVM's `fptosi.sat` would do it, but
    not in the lanes of vectors.
    """
    if value.type not in BELOW_ONE:  # a float16
        value = builder.fpext(value, f32)
    kind, bits, ones = value.type, max(typ.width, 16), (1 << typ.width) - 1
    top = 1 << (bits - 1 if signed else bits)
    low, last = kind(-float(top) if signed else 0.0), kind(top * BELOW_ONE[kind])
    inside = builder.select(builder.fcmp_ordered(">", value, low), value, low)
    inside = builder.select(builder.fcmp_ordered("<", inside, last), inside, last)
    convert = ir.IRBuilder.fptosi if signed or bits < 32 else ir.IRBuilder.fptoui
    result = convert(builder, inside, typ if typ.width >= 32 else i32)
    if typ.width < 32:
        result = builder.trunc(result, typ)
    beyond = builder.fcmp_ordered(">=", value, kind(float(top)))
    result = builder.select(beyond, typ((top - 1) & ones), result)
    highest = bits == 64 or kind == f64
    if highest == signed:  # a NaN is `low` by now, which is the same
        return result
    nan = builder.fcmp_unordered("uno", value, value)
    return builder.select(nan, typ((highest << bits - 1) & ones), result)


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


def extremum(builder: Any, op: str, a: ir.Value, b: ir.Value) -> ir.Value:
    """The lesser ("min") or greater ("max") of two floats: the number beside a NaN; -0 < +0."""
    typ, word, name = (a.type, i32, "f32") if a.type == f32 else (a.type, i64, "f64")
    choose = _function(builder, f"llvm.{op}num.{name}", typ, typ, typ)
    both = getattr(builder, "or_" if op == "min" else "and_")  # of equal numbers: the sign counts
    equal = builder.bitcast(both(builder.bitcast(a, word), builder.bitcast(b, word)), typ)
    return builder.select(builder.fcmp_ordered("==", a, b), equal, builder.call(choose, [a, b]))


def _function(builder: Any, name: str, result: Any, *args: Any) -> ir.Function:
    found = builder.module.globals.get(name)
    return found or ir.Function(builder.module, ir.FunctionType(result, args), name)
