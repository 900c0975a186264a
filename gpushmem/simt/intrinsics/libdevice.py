"""NVIDIA's libdevice (`__nv_*`) for the CPU: `math.*`, `numba.cuda.libdevice.*` and ufuncs use it.

A name is looked up in four places: LLVM's own intrinsics, which vectorise; the C library; short
generators (bits, conversions, directed rounding); device functions for what is left. The name
without its `f` is the operation, the argument types say which precision.

Source: NVIDIA, libdevice User's Guide; CUDA Math API.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from llvmlite import ir
from numba.core import cgutils
from numba.cuda import libdevicefuncs, types

from gpushmem.simt.compiler.arithmetic import extremum
from gpushmem.simt.compiler.target import INTRINSICS, call_device, device

__all__: list[str] = []

i1, i8, i16, i32, i64, i128 = (ir.IntType(n) for n in (1, 8, 16, 32, 64, 128))
f32, f64 = ir.FloatType(), ir.DoubleType()
SUFFIX = {f32: "f32", f64: "f64", i8: "i8", i16: "i16", i32: "i32", i64: "i64"}
Generator = Callable[..., Any]

# --- LLVM's intrinsics: operation -> intrinsic

LLVM = {
    **{op: op for op in ("sin", "cos", "exp", "exp2", "log", "log10", "log2", "pow", "sqrt")},
    **{op: op for op in ("floor", "ceil", "trunc", "rint", "nearbyint", "round", "fma")},
    "fabs": "fabs",
    "copysign": "copysign",
    **{f"fast_{op}": op for op in ("cos", "sin", "exp", "log", "log10", "log2")},
}


def _intrinsic(op: str, builder: Any, *args: ir.Value) -> ir.Value:
    typ = args[0].type
    fnty = ir.FunctionType(typ, [typ] * len(args))
    name = f"llvm.{op}.{SUFFIX[typ]}"
    return builder.call(cgutils.get_or_insert_function(builder.module, fnty, name), args)


# --- the C library: operation -> function of it

LIBC = {
    **{op: op for op in ("acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt")},
    **{op: op for op in ("cosh", "erf", "erfc", "exp10", "expm1", "fdim", "fmod", "frexp")},
    **{op: op for op in ("hypot", "ilogb", "j0", "j1", "jn", "y0", "y1", "yn", "ldexp")},
    **{op: op for op in ("lgamma", "log1p", "logb", "modf", "nextafter")},
    **{op: op for op in ("remainder", "remquo", "scalbn", "sincos", "sinh", "tan", "tanh")},
    "tgamma": "tgamma",
    "fast_exp10": "exp10",
    "fast_tan": "tan",
    "fast_sincos": "sincos",
}


def _libc(name: str, result: ir.Type, builder: Any, *args: ir.Value) -> ir.Value:
    fnty = ir.FunctionType(result, [a.type for a in args])
    return builder.call(cgutils.get_or_insert_function(builder.module, fnty, name), args)


# --- bits and integers


def _bit_count(op: str, *flags: ir.Value) -> Generator:
    def count(builder: Any, value: ir.Value) -> ir.Value:
        result = getattr(builder, op)(value, *flags)
        return builder.trunc(result, i32) if result.type == i64 else result

    return count


def _ffs(builder: Any, value: ir.Value) -> ir.Value:
    zeros = _narrow(builder, builder.cttz(value, i1(0)))
    empty = builder.icmp_unsigned("==", value, value.type(0))
    return builder.select(empty, i32(0), builder.add(zeros, i32(1)))


def _narrow(builder: Any, value: ir.Value) -> ir.Value:
    return builder.trunc(value, i32) if value.type == i64 else value


def _high(extend: str) -> Generator:
    def high(builder: Any, a: ir.Value, b: ir.Value) -> ir.Value:
        wide = ir.IntType(2 * a.type.width)
        product = builder.mul(*(getattr(builder, extend)(v, wide) for v in (a, b)))
        return builder.trunc(builder.lshr(product, wide(a.type.width)), a.type)

    return high


def _mul24(shift: str) -> Generator:
    def mul24(builder: Any, a: ir.Value, b: ir.Value) -> ir.Value:
        low = [getattr(builder, shift)(builder.shl(v, i32(8)), i32(8)) for v in (a, b)]
        return builder.mul(*low)

    return mul24


def _average(extend: str, shift: str, more: int) -> Generator:
    def average(builder: Any, a: ir.Value, b: ir.Value) -> ir.Value:
        total = builder.add(*(getattr(builder, extend)(v, i64) for v in (a, b)))
        return builder.trunc(getattr(builder, shift)(builder.add(total, i64(more)), i64(1)), i32)

    return average


def _sad(compare: str) -> Generator:
    def sad(builder: Any, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
        less = getattr(builder, compare)("<", a, b)
        return builder.add(builder.select(less, builder.sub(b, a), builder.sub(a, b)), c)

    return sad


def _extremum(compare: str, op: str) -> Generator:
    def extremum(builder: Any, a: ir.Value, b: ir.Value) -> ir.Value:
        return builder.select(getattr(builder, compare)(op, a, b), a, b)

    return extremum


def _abs(builder: Any, value: ir.Value) -> ir.Value:
    zero = value.type(0)
    return builder.select(builder.icmp_signed("<", value, zero), builder.sub(zero, value), value)


def _byte_perm(builder: Any, a: ir.Value, b: ir.Value, selector: ir.Value) -> ir.Value:
    both = builder.or_(builder.zext(a, i64), builder.shl(builder.zext(b, i64), i64(32)))
    result: ir.Value = i32(0)
    for k in range(4):
        which = builder.and_(builder.lshr(selector, i32(4 * k)), i32(7))
        byte = builder.lshr(both, builder.zext(builder.mul(which, i32(8)), i64))
        byte = builder.and_(builder.trunc(byte, i32), i32(0xFF))
        result = builder.or_(result, builder.shl(byte, i32(8 * k)))
    return result


INTEGERS: dict[str, Generator] = {
    "abs": _abs, "llabs": _abs, "byte_perm": _byte_perm,
    "brev": lambda b, v: b.bitreverse(v), "brevll": lambda b, v: b.bitreverse(v),
    "clz": _bit_count("ctlz", i1(0)), "clzll": _bit_count("ctlz", i1(0)),
    "popc": _bit_count("ctpop"), "popcll": _bit_count("ctpop"), "ffs": _ffs, "ffsll": _ffs,
    "mulhi": _high("sext"), "mul64hi": _high("sext"),
    "umulhi": _high("zext"), "umul64hi": _high("zext"),
    "mul24": _mul24("ashr"), "umul24": _mul24("lshr"),
    "hadd": _average("sext", "ashr", 0), "rhadd": _average("sext", "ashr", 1),
    "uhadd": _average("zext", "lshr", 0), "urhadd": _average("zext", "lshr", 1),
    "sad": _sad("icmp_signed"), "usad": _sad("icmp_unsigned"),
    **{name: _extremum("icmp_signed", ">") for name in ("max", "llmax")},
    **{name: _extremum("icmp_signed", "<") for name in ("min", "llmin")},
    **{name: _extremum("icmp_unsigned", ">") for name in ("umax", "ullmax")},
    **{name: _extremum("icmp_unsigned", "<") for name in ("umin", "ullmin")},
}  # fmt: skip


# --- bit patterns and predicates of floats


def _same_bits(typ: ir.Type) -> Generator:
    return lambda builder, value: builder.bitcast(value, typ)


def _half_of_double(high: bool) -> Generator:
    def half(builder: Any, value: ir.Value) -> ir.Value:
        bits = builder.bitcast(value, i64)
        return builder.trunc(builder.lshr(bits, i64(32)) if high else bits, i32)

    return half


def _hiloint2double(builder: Any, high: ir.Value, low: ir.Value) -> ir.Value:
    bits = builder.or_(builder.shl(builder.zext(high, i64), i64(32)), builder.zext(low, i64))
    return builder.bitcast(bits, f64)


def _sign_bit(builder: Any, value: ir.Value) -> ir.Value:
    word = i32 if value.type == f32 else i64
    negative = builder.icmp_signed("<", builder.bitcast(value, word), word(0))
    return builder.zext(negative, i32)


def _predicate(op: str, ordered: bool) -> Generator:
    """Compare |x| with infinity."""

    def predicate(builder: Any, value: ir.Value) -> ir.Value:
        compare = builder.fcmp_ordered if ordered else builder.fcmp_unordered
        infinite = ir.Constant(value.type, math.inf)
        return builder.zext(compare(op, _intrinsic("fabs", builder, value), infinite), i32)

    return predicate


def _is_nan(builder: Any, value: ir.Value) -> ir.Value:
    return builder.zext(builder.fcmp_unordered("uno", value, value), i32)


def _saturate(builder: Any, value: ir.Value) -> ir.Value:
    zero, one = ir.Constant(f32, 0.0), ir.Constant(f32, 1.0)
    # the number beside a NaN is chosen: NaN saturates to 0
    return extremum(builder, "min", extremum(builder, "max", value, zero), one)


def _float2half(builder: Any, value: ir.Value) -> ir.Value:
    return builder.bitcast(builder.fptrunc(value, ir.HalfType()), i16)


def _half2float(builder: Any, value: ir.Value) -> ir.Value:
    return builder.fpext(builder.bitcast(value, ir.HalfType()), f32)


def _fast_power(builder: Any, x: ir.Value, y: ir.Value) -> ir.Value:
    """By logarithms, so NaN where `x` is negative."""
    return _intrinsic("exp2", builder, builder.fmul(y, _intrinsic("log2", builder, x)))


def _whole_power(builder: Any, x: ir.Value, n: ir.Value) -> ir.Value:
    """Of a double: a float would not tell whether a large `n` is odd."""
    return _intrinsic("pow", builder, x, builder.sitofp(n, f64))


def _nearest(to: str, builder: Any, value: ir.Value) -> ir.Value:
    """The nearest integer, by the rule of "rint" or of "round"."""
    return builder.fptosi(_intrinsic(to, builder, value), i64)


FLOATS: dict[str, Generator] = {
    "double_as_longlong": _same_bits(i64), "longlong_as_double": _same_bits(f64),
    "float_as_int": _same_bits(i32), "int_as_float": _same_bits(f32),
    "double2hiint": _half_of_double(True), "double2loint": _half_of_double(False),
    "hiloint2double": _hiloint2double, "signbitd": _sign_bit, "signbitf": _sign_bit,
    "isnand": _is_nan, "isnanf": _is_nan,
    "isinfd": _predicate("==", True), "isinff": _predicate("==", True),
    "isfinited": _predicate("<", True), "finitef": _predicate("<", True),
    "saturatef": _saturate, "float2half_rn": _float2half, "half2float": _half2float,
    "fast_fdividef": lambda b, x, y: b.fdiv(x, y), "fast_powf": _fast_power,
    **{
        f"{name}{s}": generate
        for s in ("", "f")
        for name, generate in (
            ("fmin", lambda b, x, y: extremum(b, "min", x, y)),
            ("fmax", lambda b, x, y: extremum(b, "max", x, y)),
            ("llrint", partial(_nearest, "rint")), ("llround", partial(_nearest, "round")),
        )
    },
    "powi": _whole_power,
    "powif": lambda b, x, n: b.fptrunc(_whole_power(b, b.fpext(x, f64), n), f32),
    **{
        f"{op}{s}": (lambda b, x, inner=inner: b.fdiv(ir.Constant(x.type, 1.0), inner(b, x)))
        for s in ("", "f")
        for op, inner in (
            ("rsqrt", partial(_intrinsic, "sqrt")),
            ("rcbrt", lambda b, x: _libc("cbrtf" if x.type == f32 else "cbrt", x.type, b, x)),
        )
    },
}  # fmt: skip


# --- arithmetic with directed rounding: one instruction under another rounding mode

ROUNDING = {"rn": 0x1F80, "rd": 0x3F80, "ru": 0x5F80, "rz": 0x7F80}  # values of MXCSR


def _rounded(mode: str, instruction: str, result: ir.Type, builder: Any, *args: ir.Value) -> Any:
    """`instruction` on register arguments, the last one being overwritten with the result."""
    controls = []
    for value in (ROUNDING[mode], ROUNDING["rn"]):
        control = cgutils.alloca_once_value(builder, i32(value))
        controls.append(control)
    # $0 result, then the arguments (the last tied to $0), then the two control words
    n = len(args)
    operands = ", ".join([f"${k + 1}" for k in range(n - 1)] + ["$0"])
    text = f"ldmxcsr ${n + 1}\n\t{instruction} {operands}\n\tldmxcsr ${n + 2}"
    registers = ["r" if isinstance(a.type, ir.IntType) else "x" for a in args[:-1]]
    constraints = ",".join(["=x", *registers, "0", "*m", "*m", "~{memory}"])
    fnty = ir.FunctionType(result, [*(a.type for a in args), *(c.type for c in controls)])
    return _asm(builder, fnty, text, constraints, [*args, *controls])


def _asm(builder: Any, fnty: Any, text: str, constraints: str, args: list[ir.Value]) -> ir.Value:
    function = ir.InlineAsm(fnty, text, constraints, side_effect=True)
    attrs = {k: ("elementtype",) for k, a in enumerate(args) if isinstance(a.type, ir.PointerType)}
    return builder.call(function, args, arg_attrs=attrs)


def _arithmetic(op: str, mode: str, builder: Any, *args: ir.Value) -> ir.Value:
    typ = args[0].type
    kind = "ss" if typ == f32 else "sd"
    if mode == "rn":
        if op == "sqrt":
            return _intrinsic("sqrt", builder, *args)
        if op == "fma":
            return _intrinsic("fma", builder, *args)
        if op == "rcp":
            return builder.fdiv(ir.Constant(typ, 1.0), *args)
        return getattr(ir.IRBuilder, f"f{op}")(builder, *args)  # never contracted
    if op == "rcp":
        op, args = "div", (ir.Constant(typ, 1.0), *args)
    if op == "fma":  # vfmadd213: $0 = $2 * $0 + $1 in AT&T's order
        x, y, z = args
        return _rounded(mode, f"vfmadd213{kind}", typ, builder, z, y, x)
    if op == "sqrt":  # overwrites its operand's register
        return _rounded(mode, f"sqrt{kind}", typ, builder, args[0], args[0])
    x, y = args
    return _rounded(mode, f"{op}{kind}", typ, builder, y, x)


def _to_integer(mode: str, signed: bool, result: ir.Type, builder: Any, value: ir.Value) -> Any:
    whole = {"rn": "rint", "rd": "floor", "ru": "ceil", "rz": "trunc"}[mode]
    rounded = _intrinsic(whole, builder, value)
    convert = builder.fptosi if signed else builder.fptoui
    if result.width > 8:
        return convert(rounded, result)
    # Numba's conversion to 8 bits keeps the lower half of 16; these are clamped.
    number = convert(rounded, ir.IntType(16))
    for op, limit in ((">", 0x7F), ("<", -0x80)) if signed else ((">", 0xFF),):
        compare = builder.icmp_signed if signed else builder.icmp_unsigned
        bound = number.type(limit)
        number = builder.select(compare(op, number, bound), bound, number)
    return builder.trunc(number, result)


def _to_float(mode: str, signed: bool, result: ir.Type, builder: Any, value: ir.Value) -> Any:
    if mode == "rn":
        return (builder.sitofp if signed else builder.uitofp)(value, result)
    if value.type == i32:
        value, signed = (builder.sext if signed else builder.zext)(value, i64), True
    convert = "cvtsi2ssq" if result == f32 else "cvtsi2sdq"
    zero = ir.Constant(result, 0.0)
    if signed:
        return _rounded(mode, convert, result, builder, value, zero)
    # Above 2**63: halve, keeping the lost bit, convert, and double, which is exact.
    halved = builder.or_(builder.lshr(value, i64(1)), builder.and_(value, i64(1)))
    big = builder.icmp_signed("<", value, i64(0))
    small = builder.select(big, halved, value)
    converted = _rounded(mode, convert, result, builder, small, zero)
    return builder.select(big, builder.fadd(converted, converted), converted)


def _rounded_rsqrt(builder: Any, value: ir.Value) -> ir.Value:
    root = _intrinsic("sqrt", builder, builder.fpext(value, f64))
    return builder.fptrunc(builder.fdiv(ir.Constant(f64, 1.0), root), f32)


def _double2float(mode: str, builder: Any, value: ir.Value) -> ir.Value:
    if mode == "rn":
        return builder.fptrunc(value, f32)
    return _rounded(mode, "cvtsd2ss", f32, builder, value, ir.Constant(f32, 0.0))


INTEGER_NAMES = {"int": (True, i32), "uint": (False, i32), "ll": (True, i64), "ull": (False, i64)}
FLOAT_NAMES = {"float": f32, "double": f64}


def _rounding(name: str) -> Generator | None:
    """The generator for a name such as `dadd_rd`, `float2int_rn`, `fmaf_ru`, `ull2double_rz`."""
    stem, _, mode = name.partition("_")
    if mode not in ROUNDING:
        return None
    source, _, target = stem.partition("2")
    if source in FLOAT_NAMES and target in INTEGER_NAMES:
        return partial(_to_integer, mode, *INTEGER_NAMES[target])
    if source in INTEGER_NAMES and target in FLOAT_NAMES:
        return partial(_to_float, mode, INTEGER_NAMES[source][0], FLOAT_NAMES[target])
    if stem == "double2float":
        return partial(_double2float, mode)
    if stem == "frsqrt":
        return _rounded_rsqrt
    op = "fma" if stem.startswith("fma") else stem[1:]
    return partial(_arithmetic, op, mode) if op in ARITHMETIC else None


ARITHMETIC = ("add", "sub", "mul", "div", "sqrt", "rcp", "fma")


# --- the others, in Python


@device
def sinpi(x):
    r = math.fmod(x, 2.0)
    if r > 1.0:
        r -= 2.0
    elif r < -1.0:
        r += 2.0
    if r > 0.5:
        r = 1.0 - r
    elif r < -0.5:
        r = -1.0 - r
    return math.sin(math.pi * r) if r != 0.0 else math.copysign(0.0, x)


@device
def cospi(x):
    r = math.fmod(math.fabs(x), 2.0)
    if r > 1.0:
        r = 2.0 - r
    if r == 0.5:
        return 0.0
    return math.cos(math.pi * r)


@device
def normcdf(x):
    return 0.5 * math.erfc(-x / math.sqrt(2.0))


@device
def erfcx(x):
    if x < 25.0:
        return math.exp(x * x) * math.erfc(x)
    # The continued fraction, which has converged to double precision here.
    t = 0.0
    for k in range(30, 0, -1):
        t = 0.5 * k / (x + t)
    return 1.0 / (math.sqrt(math.pi) * (x + t))


@device
def erfinv(y):
    if y <= -1.0 or y >= 1.0:
        return math.copysign(math.inf, y) if math.fabs(y) == 1.0 else math.nan
    # Winitzki's approximation, then Halley's steps on erf.
    a = 0.147
    log = math.log1p(-y * y)
    t = 2.0 / (math.pi * a) + 0.5 * log
    x = math.copysign(math.sqrt(math.sqrt(t * t - log / a) - t), y)
    for _ in range(3):
        if math.fabs(y) < 0.5:
            error = math.erf(x) - y
        else:
            sign = 1.0 if y > 0.0 else -1.0
            error = sign * (1.0 - math.fabs(y) - math.erfc(math.fabs(x)))
        step = error / (2.0 / math.sqrt(math.pi) * math.exp(-x * x))
        x -= step / (1.0 + x * step)
    return x


@device
def erfcinv(y):
    if y <= 0.0 or y >= 2.0:
        return math.inf if y == 0.0 else -math.inf if y == 2.0 else math.nan
    if 0.3 < y < 1.7:
        return erfinv(1.0 - y)
    small = min(y, 2.0 - y)
    x = math.sqrt(-math.log(small))
    for _ in range(8):
        step = (math.erfc(x) - small) / (2.0 / math.sqrt(math.pi) * math.exp(-x * x))
        x += step / (1.0 - x * step)
    return math.copysign(x, 1.0 - y)


@device
def normcdfinv(p):
    return 0.0 - math.sqrt(2.0) * erfcinv(2.0 * p)  # 0 of one half, not -0


PYTHON = {f.__name__: f for f in (sinpi, cospi, normcdf, erfcx, erfinv, erfcinv, normcdfinv)}


def _python(function: Any, builder: Any, value: ir.Value) -> ir.Value:
    """Call a device function of doubles; floats are converted."""
    wide = builder.fpext(value, f64) if value.type == f32 else value
    result = call_device(builder, function, types.float64(types.float64), [wide])
    return builder.fptrunc(result, f32) if value.type == f32 else result


def _sincospi(builder: Any, value: ir.Value, sine: ir.Value, cosine: ir.Value) -> None:
    builder.store(_python(sinpi, builder, value), sine)
    builder.store(_python(cospi, builder, value), cosine)


# --- the table


def _generator(name: str, result: Any) -> Generator:
    for table in (INTEGERS, FLOATS):
        if name in table:
            return table[name]
    rounding = _rounding(name)
    if rounding is not None:
        return rounding
    for op in (name, name.removesuffix("f")):
        if op in LLVM:
            return partial(_intrinsic, LLVM[op])
        if op in LIBC:
            libc = LIBC[op] + ("f" if op != name else "")
            return partial(_libc, libc, _llvm(result))
        if op in PYTHON:
            return partial(_python, PYTHON[op])
        if op == "sincospi":
            return _sincospi
    raise NotImplementedError(name)


def _llvm(typ: Any) -> ir.Type:
    if isinstance(typ, types.Integer):
        return ir.IntType(typ.bitwidth)
    return {types.float32: f32, types.float64: f64}.get(typ, ir.VoidType())


for _name, (_result, _args) in libdevicefuncs.functions.items():
    INTRINSICS[_name] = _generator(_name.removeprefix("__nv_"), _result)
