"""float16 and bfloat16: the functions of `cuda_fp16.h` and `cuda_bf16.h`, as CPU code.

Values are 16 bits in an integer. Arithmetic is done in float32, whose 24 bits are enough for sums,
products, quotients and roots of both formats to be rounded correctly when rounded again; `fma` is
done in float64.

Source: CUDA Math API, "Half Precision Intrinsics" and "Bfloat16 Precision Intrinsics".
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from llvmlite import ir

from gpushmem.simt.compiler.arithmetic import extremum
from gpushmem.simt.compiler.target import INTRINSICS
from gpushmem.simt.intrinsics.atomics import update
from gpushmem.simt.intrinsics.libdevice import _intrinsic, _libc, _rounded, _to_integer

__all__ = ["CLASSES", "INTEGERS", "STORED", "call", "narrow", "real", "round_to_odd", "to_builtin",
           "widen"]  # fmt: skip

i1, i8, i16, i32, i64 = (ir.IntType(n) for n in (1, 8, 16, 32, 64))
half, f32, f64 = ir.HalfType(), ir.FloatType(), ir.DoubleType()

CLASSES = {"__half": "half", "__nv_bfloat16": "bfloat"}
# Itanium C++ ABI, builtin types -> signed
INTEGERS = {"a": True, "c": True, "s": True, "i": True, "l": True, "x": True,
            "h": False, "t": False, "j": False, "m": False, "y": False, "b": False}  # fmt: skip


# --- conversions


def widen(fmt: str, builder: Any, bits: ir.Value) -> ir.Value:
    """16 bits to float32."""
    if fmt == "half":
        return builder.fpext(builder.bitcast(bits, half), f32)
    return builder.bitcast(builder.shl(builder.zext(bits, i32), i32(16)), f32)


def narrow(fmt: str, builder: Any, value: ir.Value, mode: str = "rn") -> ir.Value:
    """float32 or float64 to 16 bits."""
    exact = value
    if value.type == f64:
        value = round_to_odd(builder, value)
    if fmt == "half":
        bits = builder.bitcast(builder.fptrunc(value, half), i16)
    else:
        bits = _nearest_bfloat(builder, value)
    if mode == "rn":
        return bits
    back = widen(fmt, builder, bits)
    back = builder.fpext(back, f64) if exact.type == f64 else back
    negative = builder.icmp_signed("<", bits, i16(0))
    if mode == "rz":
        magnitude, limit = (_intrinsic("fabs", builder, v) for v in (back, exact))
        beyond = builder.fcmp_ordered(">", magnitude, limit)
        return builder.select(beyond, builder.sub(bits, i16(1)), bits)
    down = mode == "rd"
    beyond = builder.fcmp_ordered(">" if down else "<", back, exact)
    shrinks = builder.xor(negative, i1(down))  # the step makes the magnitude smaller
    stepped = builder.add(bits, builder.select(shrinks, i16(-1), i16(1)))
    zero = builder.icmp_unsigned("==", builder.and_(bits, i16(0x7FFF)), i16(0))
    stepped = builder.select(zero, i16(-0x7FFF if down else 1), stepped)
    return builder.select(beyond, stepped, bits)


def round_to_odd(builder: Any, value: ir.Value) -> ir.Value:
    """float64 to float32 such that rounding again, to 16 bits, is correct."""
    single = _rounded("rz", "cvtsd2ss", f32, builder, value, ir.Constant(f32, 0.0))
    inexact = builder.fcmp_ordered("!=", builder.fpext(single, f64), value)
    return builder.bitcast(
        builder.or_(builder.bitcast(single, i32), builder.zext(inexact, i32)), f32
    )


def _nearest_bfloat(builder: Any, value: ir.Value) -> ir.Value:
    word = builder.bitcast(value, i32)
    even = builder.and_(builder.lshr(word, i32(16)), i32(1))
    rounded = builder.add(builder.add(word, i32(0x7FFF)), even)
    bits = builder.trunc(builder.lshr(rounded, i32(16)), i16)
    return builder.select(builder.fcmp_unordered("uno", value, value), i16(0x7FFF), bits)


def real(builder: Any, signed: bool, value: ir.Value) -> ir.Value:
    """An integer as float64 such that rounding again, to 51 bits or fewer, is correct."""
    if value.type == i64:
        lost = builder.icmp_unsigned("!=", builder.and_(value, i64(0x7FF)), i64(0))
        top = builder.and_(value, i64(-0x800))
        odd = builder.or_(top, builder.shl(builder.zext(lost, i64), i64(11)))
        magnitude = _magnitude(builder, value) if signed else value
        small = builder.icmp_unsigned("<", magnitude, i64(1 << 53))
        value = builder.select(small, value, odd)
    return (builder.sitofp if signed else builder.uitofp)(value, f64)


def _magnitude(builder: Any, value: ir.Value) -> ir.Value:
    negative = builder.icmp_signed("<", value, i64(0))
    return builder.select(negative, builder.neg(value), value)


def _from_integer(fmt: str, mode: str, signed: bool, builder: Any, value: ir.Value) -> ir.Value:
    return narrow(fmt, builder, real(builder, signed, value), mode)


# --- operations on float32 values: name -> f(builder, *floats)


def _number(value: float) -> ir.Constant:
    return ir.Constant(f32, value)


def _saturated(builder: Any, value: ir.Value) -> ir.Value:
    positive = extremum(builder, "max", value, ir.Constant(value.type, 0.0))
    return extremum(builder, "min", positive, ir.Constant(value.type, 1.0))


def _relu(builder: Any, value: ir.Value) -> ir.Value:
    negative = builder.fcmp_ordered("<", value, ir.Constant(value.type, 0.0))
    return builder.select(negative, ir.Constant(value.type, 0.0), value)


def _fma(builder: Any, *args: ir.Value) -> ir.Value:
    return _intrinsic("fma", builder, *(builder.fpext(a, f64) for a in args))


def _propagating(op: str, builder: Any, a: ir.Value, b: ir.Value) -> ir.Value:
    unordered = builder.fcmp_unordered("uno", a, b)
    return builder.select(unordered, builder.fadd(a, b), extremum(builder, op, a, b))


def _inverse(builder: Any, value: ir.Value) -> ir.Value:
    return builder.fdiv(_number(1.0), value)


def _binary(op: str) -> Callable[..., ir.Value]:
    return lambda builder, a, b: getattr(builder, op)(a, b)


BINARY = ("add", "sub", "mul", "div")
ARITHMETIC: dict[str, Callable[..., ir.Value]] = {
    **{f"__h{op}{s}": _binary(f"f{op}") for op in BINARY for s in ("", "_rn")},
    **{
        f"__h{op}_sat": (lambda b, x, y, op=op: _saturated(b, getattr(b, f"f{op}")(x, y)))
        for op in ("add", "sub", "mul")
    },
    "__hfma": _fma,
    "__hfma_sat": lambda b, *args: _saturated(b, _fma(b, *args)),
    "__hfma_relu": lambda b, *args: _relu(b, _fma(b, *args)),
    "__hmax": lambda b, x, y: extremum(b, "max", x, y),
    "__hmin": lambda b, x, y: extremum(b, "min", x, y),
    "__hmax_nan": partial(_propagating, "max"),
    "__hmin_nan": partial(_propagating, "min"),
    **{
        f"h{op}": partial(_intrinsic, op)
        for op in ("trunc", "ceil", "floor", "rint", "sqrt", "log", "log2", "log10", "exp", "exp2",
                   "cos", "sin")
    },
    "hexp10": partial(_libc, "exp10f", f32),
    "htanh": partial(_libc, "tanhf", f32),
    "htanh_approx": partial(_libc, "tanhf", f32),
    "hrcp": _inverse,
    "hrsqrt": lambda b, x: _inverse(b, _intrinsic("sqrt", b, x)),
}  # fmt: skip

COMPARISONS = {"eq": "==", "ne": "!=", "le": "<=", "ge": ">=", "lt": "<", "gt": ">"}


def _compare(op: str, builder: Any, a: ir.Value, b: ir.Value) -> ir.Value:
    unordered = op.endswith("u")
    compare = builder.fcmp_unordered if unordered else builder.fcmp_ordered
    return compare(COMPARISONS[op.removesuffix("u")], a, b)


PREDICATES: dict[str, Callable[..., ir.Value]] = {
    **{f"__h{op}{u}": partial(_compare, f"{op}{u}") for op in COMPARISONS for u in ("", "u")},
    "__hisnan": lambda b, x: b.fcmp_unordered("uno", x, x),
}


def _is_infinite(builder: Any, bits: ir.Value, infinity: int) -> ir.Value:
    sign = builder.select(builder.icmp_signed("<", bits, i16(0)), i32(-1), i32(1))
    infinite = builder.icmp_unsigned("==", builder.and_(bits, i16(0x7FFF)), i16(infinity))
    return builder.select(infinite, sign, i32(0))


# --- functions by name


STORED: Any = object()  # the function has stored its result, or has none


def call(builder: Any, function: str, types: str, fmt: str, values: list[Any]) -> Any:
    """The value of a function of `fmt`, given the mangled `types` of its arguments; or None."""
    if function in ARITHMETIC:
        floats = [widen(fmt, builder, v) for v in values]
        return narrow(fmt, builder, ARITHMETIC[function](builder, *floats))
    if function in PREDICATES:
        return PREDICATES[function](builder, *(widen(fmt, builder, v) for v in values))
    if function in ("new", "convert") or "2" in function:
        return _converted(builder, function, types, fmt, values)
    if function in ("__habs", "__hneg"):
        op, mask = ("and_", 0x7FFF) if function == "__habs" else ("xor", -0x8000)
        return getattr(builder, op)(values[0], i16(mask))
    if function == "__hisinf":
        return _is_infinite(builder, values[0], 0x7C00 if fmt == "half" else 0x7F80)
    if function == "same" or "_as_" in function:
        return values[0]
    if function.startswith("__ld"):
        return builder.load(builder.bitcast(values[0], i16.as_pointer()))
    if function.startswith("__st"):
        builder.store(values[1], builder.bitcast(values[0], i16.as_pointer()))
        return STORED
    if function == "atomicAdd":
        return _atomic_add(builder, fmt, *values)
    return None


def _converted(builder: Any, function: str, types: str, fmt: str, values: list[Any]) -> Any:
    stem, _, mode = function.partition("_r")
    mode = f"r{mode}" if mode else "rn"
    if not values:
        return i16(0)
    value, code = values[0], types[0]
    to_format = function == "new" or stem.endswith(("2half", "2bfloat16"))
    if to_format and types.startswith(("f", "d")):
        return narrow(fmt, builder, value, mode)
    if to_format and code in INTEGERS:
        return _from_integer(fmt, mode, INTEGERS[code], builder, value)
    if to_format:  # from the other format, or raw bits
        other = next((f for t, f in CLASSES.items() if t in types and f != fmt), None)
        if isinstance(value.type, ir.LiteralStructType | ir.IdentifiedStructType):
            value = builder.extract_value(value, 0)
        return narrow(fmt, builder, widen(other, builder, value)) if other else value
    single = widen(fmt, builder, value)
    if function == "convert":
        return to_builtin(builder, types, single)
    target = stem.removeprefix("__half2").removeprefix("__bfloat162")
    if target == "float":
        return single
    letter = {"char": "a", "uchar": "h", "short": "s", "ushort": "t", "int": "i", "uint": "j",
              "ll": "x", "ull": "y"}.get(target)  # fmt: skip
    return to_builtin(builder, letter, single, mode) if letter else None


WIDTHS = {"a": i8, "c": i8, "h": i8, "s": i16, "t": i16, "i": i32, "j": i32}


def to_builtin(builder: Any, code: str, value: ir.Value, mode: str = "rz") -> Any:
    """float32 to the builtin type with the mangled name `code`; None if it is no such type."""
    if code == "f":
        return value
    if code == "b":
        return builder.fcmp_unordered("!=", value, _number(0.0))
    if code not in INTEGERS:
        return None
    return _to_integer(mode, INTEGERS[code], WIDTHS.get(code, i64), builder, value)


def _atomic_add(builder: Any, fmt: str, address: ir.Value, value: ir.Value) -> ir.Value:
    def change(old: ir.Value) -> tuple[ir.Value, ir.Value]:
        total = builder.fadd(widen(fmt, builder, old), widen(fmt, builder, value))
        return narrow(fmt, builder, total), i1(1)

    return update(builder, builder.bitcast(address, i16.as_pointer()), change)


# --- casts, which numba-cuda writes in PTX

INTRINSICS["cvt.f32.f16 $0, $1;"] = partial(widen, "half")
INTRINSICS["cvt.f64.f16 $0, $1;"] = lambda builder, v: builder.fpext(widen("half", builder, v), f64)
for _real in ("f32", "f64"):
    INTRINSICS[f"cvt.rn.f16.{_real} $0, $1;"] = partial(narrow, "half")
for _letter in ("s", "u"):
    for _integer in (i8, i16, i32, i64):
        _typ, _signed = f"{_letter}{_integer.width}", _letter == "s"
        INTRINSICS[f"cvt.rn.f16.{_typ} $0, $1;"] = partial(_from_integer, "half", "rn", _signed)
        INTRINSICS[f"cvt.rni.{_typ}.f16 $0, $1;"] = lambda builder, v, s=_signed, t=_integer: (
            _to_integer("rn", s, t, builder, widen("half", builder, v))
        )
INTRINSICS["tanh.approx.f32 $0, $1;"] = partial(_libc, "tanhf", f32)
