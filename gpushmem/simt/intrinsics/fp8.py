"""8-bit floats, e5m2, e4m3 and e8m0: the functions of `cuda_fp8.h`, as CPU code.

A number is first rounded to odd in float16, which has two bits more than any of the formats and a
wider range; rounding that to nearest even is then correct. e8m0 has powers of two alone and takes
the exponent from float32.

Sources: CUDA Math API, "FP8 Intrinsics"; Boldo and Melquiond, "Emulation of a FMA and correctly
rounded sums: proved algorithms using rounding to odd", IEEE Transactions on Computers, 2008;
OCP Microscaling Formats (MX) Specification 1.0, section 5.4, for e8m0.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from gpushmem.simt.intrinsics import half_floats
from gpushmem.simt.intrinsics.half_floats import f32, f64, i1, i8, i16, i32
from gpushmem.simt.intrinsics.libdevice import _intrinsic

__all__ = ["FORMATS", "call"]

FORMATS = ("e5m2", "e4m3", "e8m0")
TOWARDS_ZERO = 1  # cudaRoundZero; the other mode that e8m0 has is cudaRoundPosInf
SMALLEST_E4M3 = 0x2400  # 2**-6, the smallest normal number of e4m3, in float16


def call(builder: Any, function: str, types: str, fmt: str, values: list[Any]) -> Any:
    """The value of a function of `fmt`, given the mangled `types` of its arguments; or None.

    `fmt` is one of FORMATS for a member of its classes, else "fp8" for a free function.
    """
    if function == "new":
        if not values:
            return i8(0)
        finite, down = i1(1), i1(0)
        return _pack(builder, [_encode(fmt, builder, x, finite, down)
                               for x in _reals(builder, types, values[0])])  # fmt: skip
    if function == "convert":
        return _converted(builder, types, fmt, values[0])
    if function == "__nv_cvt_e8m0_to_bf16raw":
        return half_floats.narrow("bfloat", builder, _decode("e8m0", builder, values[0]))
    value, saturation, how = values
    finite = builder.icmp_unsigned("!=", saturation, saturation.type(0))
    source = "13__nv_bfloat16" if "bfloat16raw" in function else types
    codes = []
    for x in _reals(builder, source, value):
        if "e8m0" in function:
            down = builder.icmp_unsigned("==", how, how.type(TOWARDS_ZERO))
            codes.append(_encode("e8m0", builder, x, finite, down))
        else:
            e4m3, e5m2 = (_encode(f, builder, x, finite, i1(0)) for f in ("e4m3", "e5m2"))
            is_e4m3 = builder.icmp_unsigned("==", how, how.type(0))
            codes.append(builder.select(is_e4m3, e4m3, e5m2))
    return _pack(builder, codes)


def _reals(builder: Any, types: str, value: ir.Value) -> list[Any]:
    """A number, or the numbers of a vector, as float32 or float64."""
    if isinstance(value.type, ir.BaseStructType):
        members = [builder.extract_value(value, k) for k in range(len(value.type.elements))]
    else:
        members = [value]
    fmt = next((f for c, f in half_floats.CLASSES.items() if c in types), None)
    if fmt:
        return [half_floats.widen(fmt, builder, m) for m in members]
    signed = half_floats.INTEGERS.get(types[0])
    return members if signed is None else [half_floats.real(builder, signed, m) for m in members]


def _pack(builder: Any, codes: list[Any]) -> ir.Value:
    """Bytes in one integer, the first lowest."""
    packed = codes[0]
    for k, code in enumerate(codes[1:], 1):
        typ = ir.IntType(8 * len(codes))
        high = builder.shl(builder.zext(code, typ), typ(8 * k))
        packed = builder.or_(packed if k > 1 else builder.zext(packed, typ), high)
    return packed


def _converted(builder: Any, types: str, fmt: str, value: ir.Value) -> Any:
    if isinstance(value.type, ir.BaseStructType):  # a vector's bytes, to floats
        value = builder.extract_value(value, 0)
        lanes = value.type.width // 8
        result = ir.LiteralStructType([f32] * lanes)(ir.Undefined)
        for k in range(lanes):
            code = builder.trunc(builder.lshr(value, value.type(8 * k)), i8)
            result = builder.insert_value(result, _decode(fmt, builder, code), k)
        return result
    number = _decode(fmt, builder, value)
    if types == "d":
        return builder.fpext(number, f64)
    if types == "6__half":
        return half_floats.narrow("half", builder, number)
    if types == "13__nv_bfloat16":
        return half_floats.narrow("bfloat", builder, number)  # exact
    return half_floats.to_builtin(builder, types, number)


def _encode(fmt: str, builder: Any, value: ir.Value, finite: ir.Value, down: ir.Value) -> ir.Value:
    """float32 or float64 to 8 bits. What is too large gives the largest number if `finite`.

    e5m2 and e4m3 round to nearest even. e8m0 drops the sign and rounds up, or, if `down`, down.
    """
    nan = builder.fcmp_unordered("uno", value, value)
    if fmt == "e8m0":
        code = _exponent(builder, value, down)
        largest, beyond, sign, canonical = 0xFE, 0xFF, i16(0), i8(-1)
    else:
        bits = _odd_half(builder, value)
        code = _nearest(fmt, builder, builder.and_(bits, i16(0x7FFF)))
        largest, beyond, always = (0x7B, 0x7C, 0x7E) if fmt == "e5m2" else (0x7E, 0x7F, 0x7F)
        top = builder.lshr(bits, i16(8))
        sign = builder.and_(top, i16(0x80))
        # Of a float64, sign and payload are kept as far as there is room.
        kept = builder.trunc(builder.or_(top, i16(always)), i8)
        canonical = kept if value.type == f64 else i8(0x7F)
    too_large = builder.icmp_unsigned(">", code, i16(largest))
    limit = builder.select(finite, i16(largest), i16(beyond))
    code = builder.or_(sign, builder.select(too_large, limit, code))
    return builder.select(nan, canonical, builder.trunc(code, i8))


def _odd_half(builder: Any, value: ir.Value) -> ir.Value:
    if value.type == f64:
        value = half_floats.round_to_odd(builder, value)
    bits = half_floats.narrow("half", builder, value, "rz")
    inexact = builder.fcmp_ordered("!=", half_floats.widen("half", builder, bits), value)
    return builder.or_(bits, builder.zext(inexact, i16))


def _nearest(fmt: str, builder: Any, magnitude: ir.Value) -> ir.Value:
    """A positive float16 to e5m2 or e4m3, as if exponents went on beyond the largest."""
    if fmt == "e5m2":
        return _shifted(builder, magnitude, 8)
    normal = _shifted(builder, builder.sub(magnitude, i16(8 << 10)), 7)  # bias 15 to bias 7
    steps = builder.fmul(half_floats.widen("half", builder, magnitude), ir.Constant(f32, 512.0))
    subnormal = builder.fptoui(_intrinsic("rint", builder, steps), i16)
    small = builder.icmp_unsigned("<", magnitude, i16(SMALLEST_E4M3))
    return builder.select(small, subnormal, normal)


def _shifted(builder: Any, bits: ir.Value, n: int) -> ir.Value:
    """Shift right by n, to nearest even."""
    even = builder.and_(builder.lshr(bits, i16(n)), i16(1))
    return builder.lshr(builder.add(builder.add(bits, i16((1 << n - 1) - 1)), even), i16(n))


def _exponent(builder: Any, value: ir.Value, down: ir.Value) -> ir.Value:
    single = half_floats.round_to_odd(builder, value) if value.type == f64 else value
    bits = builder.and_(builder.bitcast(single, i32), i32(0x7FFFFFFF))
    up = builder.add(bits, i32(0x7FFFFF))
    at_most_smallest = builder.icmp_unsigned("<=", bits, i32(0x400000))  # 2**-127, whose code is 0
    up = builder.select(at_most_smallest, bits, up)
    return builder.trunc(builder.lshr(builder.select(down, bits, up), i32(23)), i16)


def _decode(fmt: str, builder: Any, code: ir.Value) -> ir.Value:
    """8 bits to float32, which is exact."""
    if fmt == "e8m0":
        word = builder.shl(builder.zext(code, i32), i32(23))
        zero = builder.icmp_unsigned("==", code, i8(0))
        word = builder.select(zero, i32(0x400000), word)
        nan, canonical = builder.icmp_unsigned("==", code, i8(-1)), i32(0x7FFF0000)
        return builder.bitcast(builder.select(nan, canonical, word), f32)
    wide = builder.shl(builder.zext(code, i16), i16(8))
    magnitude = builder.and_(code, i8(0x7F))
    if fmt == "e5m2":
        number = half_floats.widen("half", builder, wide)
        nan = builder.icmp_unsigned(">", magnitude, i8(0x7C))
    else:
        sign = builder.and_(wide, i16(-0x8000))
        shifted = builder.shl(builder.zext(magnitude, i16), i16(7))
        biased = half_floats.widen("half", builder, builder.or_(sign, shifted))
        number = builder.fmul(biased, ir.Constant(f32, 256.0))  # bias 7 to bias 15
        nan = builder.icmp_unsigned("==", magnitude, i8(0x7F))
    return builder.select(nan, builder.bitcast(i32(0x7FFFFFFF), f32), number)
