"""What instructions of PTX give, a row each, by the PTX ISA (9.0): alone, and in lanes of vectors.

Conversions of floats to integers and shifts: test_machine.py.
"""

import math

import numpy as np
import pytest
from numba import cuda, float32, float64, int64
from numba.cuda import fp16, libdevice

from tests.simt.conftest import launch

nan, inf = math.nan, math.inf
f16, f32, f64 = np.float16, np.float32, np.float64
i8, i16, i32, i64 = np.int8, np.int16, np.int32, np.int64
u8, u32, u64 = np.uint8, np.uint32, np.uint64
LOW, HIGH = -(1 << 63), (1 << 63) - 1
TINY32, TINY64 = 2.0**-149, 2.0**-1074  # the smallest above zero

PAIRS = ([nan, 1, nan, 0.0, -0.0, -0.0, 2, -inf, TINY32], [1, nan, nan, -0.0, 0.0, -0.0, 3, 1, 0.0])
LESS, MORE = [1, 1, nan, -0.0, -0.0, -0.0, 2, -inf, 0.0], [1, 1, nan, 0.0, 0.0, -0.0, 3, 1, TINY32]
NEAREST = [0.5, 1.5, 2.5, -0.5, -1.5, nan, inf, -inf, 1e19, -1e19, 3e9]
ROUNDED = [0, 2, 2, 0, -2, LOW, HIGH, LOW, HIGH, LOW, 3_000_000_000]
WORDS = [0, 1, 0x80000000, 0x12345678, 0xFFFFFFFF]
DIVISIONS = ([HIGH, LOW, 5, 0, -7, 7, LOW], [0, -1, 0, 0, 2, -2, 1])


def minimum(a, b):
    return min(a, b)


def maximum(a, b):
    return max(a, b)


def fused(a, b, c):
    return cuda.fma(a, b, c)


def separate(a, b, c):
    return a * b + c


E32, E64 = 1 + 2.0**-12, 1 + 2.0**-27  # their squares need twice the bits

# instruction -> function, columns, results; dtypes of columns and results
ROWS = {
    "min.f32": (minimum, PAIRS, LESS, f32, f32),
    "max.f32": (maximum, PAIRS, MORE, f32, f32),
    "min.f64": (minimum, PAIRS, LESS, f64, f64),
    "max.f64": (maximum, PAIRS, MORE, f64, f64),
    "min.f32, __nv_fminf": (lambda a, b: libdevice.fminf(a, b), PAIRS, LESS, f32, f32),
    "max.f64, __nv_fmax": (lambda a, b: libdevice.fmax(a, b), PAIRS, MORE, f64, f64),
    "min.f16": (lambda a, b: fp16.hmin(a, b), PAIRS, np.array(LESS, f16), f16, f16),
    "max.f16": (lambda a, b: fp16.hmax(a, b), PAIRS, np.array(MORE, f16), f16, f16),
    "cvt.sat.f32": (lambda a: libdevice.saturatef(a), [[nan, -0.0, 2, -inf, 0.5]],
                    [0.0, 0.0, 1, 0, 0.5], f32, f32),
    "min.s64": (minimum, ([LOW, HIGH, -1], [HIGH, 0, 1]), [LOW, 0, -1], i64, i64),
    "max.u64": (maximum, ([2**64 - 1, 0], [1, 2**63]), [2**64 - 1, 2**63], u64, u64),
    "abs.s64": (lambda a: abs(a), [[LOW, -1, HIGH]], [LOW, 1, HIGH], i64, i64),
    "abs.s32": (lambda a: abs(a), [[-(2**31), -1]], [-(2**31), 1], i32, i32),
    "abs.s8": (lambda a: abs(a), [[-128, -1]], [-128, 1], i8, i8),
    "neg.s64": (lambda a: -a, [[LOW, 0, HIGH]], [LOW, 0, -HIGH], i64, i64),
    # Numba asks for zeros before it divides.
    "div.s64": (lambda a, b: a // b, DIVISIONS, [0, 0, 0, 0, -4, -4, LOW], i64, i64),
    "rem.s64": (lambda a, b: a % b, DIVISIONS, [0, 0, 0, 0, 1, -1, 0], i64, i64),
    "div.u64": (lambda a, b: a // b, ([2**64 - 1, 9], [2, 0]), [HIGH, 0], u64, u64),
    "div.rn.f64": (lambda a, b: a / b, ([1, -1, 0, 5], [0, 0.0, 0, inf]), [inf, -inf, nan, 0],
                   f64, f64),
    "div.rn.f32, denormal": (lambda a, b: a / b, ([2.0**-126], [2]), [2.0**-127], f32, f32),
    "mul.f32, denormal": (lambda a, b: a * b, ([1e-22, TINY32], [1e-22, 0.5]),
                          [f32(f32(1e-22) * f32(1e-22)), 0], f32, f32),
    "add.f64, denormal": (lambda a, b: a + b, ([TINY64], [TINY64]), [2 * TINY64], f64, f64),
    "fma.rn.f32": (fused, ([E32, nan], [E32, 1], [-1 - 2.0**-11, 1]), [2.0**-24, nan], f32, f32),
    "fma.rn.f64": (fused, ([E64, inf], [E64, 0], [-1 - 2.0**-26, 1]), [2.0**-54, nan], f64, f64),
    "mul.f32 and add.f32": (separate, ([E32], [E32], [-1 - 2.0**-11]), [0], f32, f32),
    "sqrt.rn.f32": (lambda a: math.sqrt(a), [[2, -0.0, -1, inf, 2.0**-148]],
                    [f32(2**0.5), -0.0, nan, inf, f32(2.0**-74)], f32, f32),
    "rsqrt.approx.f32": (lambda a: libdevice.rsqrtf(a), [[4, 0.0, -0.0, inf, -1]],
                         [0.5, inf, -inf, 0, nan], f32, f32),
    "rcp.rn.f64": (lambda a: libdevice.drcp_rn(a), [[4, 0.0, -0.0, -inf]],
                   [0.25, inf, -inf, -0.0], f64, f64),
    "copysign.f32": (lambda a, b: math.copysign(a, b), ([1, nan, 0.0], [-0.0, 1, -inf]),
                     [-1, nan, -0.0], f32, f32),
    "cvt.rni.s64.f64": (lambda a: round(a), [NEAREST], ROUNDED, f64, i64),
    "cvt.rni.s64.f32": (lambda a: round(a), [NEAREST[:8]], ROUNDED[:8], f32, i64),
    "cvt.rni.s32.f16": (lambda a: int64(a), [[2.5, 3.5, -3.7, nan, inf]],
                        [2, 4, -4, LOW, HIGH], f16, i64),
    "cvt.rmi.f32.f32": (lambda a: math.floor(a), [[-0.5, -0.0, inf, 2.5]], [-1, -0.0, inf, 2],
                        f32, f32),
    "cvt.rpi.f64.f64": (lambda a: math.ceil(a), [[-0.5, nan, 2.5]], [-0.0, nan, 3], f64, f64),
    "cvt.rzi.f64.f64": (lambda a: math.trunc(a), [[-0.5, 2.7, -2.7]], [-0.0, 2, -2], f64, f64),
    "cvt.rn.f32.s64": (lambda a: float32(a), [[2**24 + 1, 2**60 + 2**36 + 1, LOW]],
                       [2.0**24, 2.0**60 + 2.0**37, -(2.0**63)], i64, f32),
    "cvt.rn.f32.u64": (lambda a: float32(a), [[2**64 - 1, 2**63 + 2**39 + 1]],
                       [2.0**64, 2.0**63 + 2.0**40], u64, f32),
    "cvt.rn.f64.s64": (lambda a: float64(a), [[2**53 + 1, HIGH]], [2.0**53, 2.0**63], i64, f64),
    "cvt.rn.f32.f64": (lambda a: float32(a), [[1e39, 1 + 2.0**-24, TINY64, 2.0**128 - 2.0**103]],
                       [inf, 1, 0, inf], f64, f32),
    "cvt.rn.f16.s64": (lambda a: fp16.hadd(f16(a), f16(0)), [[2049, 2051, 65519, 65520, LOW]],
                       [2048, 2052, 65504, inf, -inf], i64, f16),
    "cvt.rn.f16.f64": (lambda a: f16(a), [[1 + 2.0**-11 + 2.0**-40, 65520, 2.0**-25, nan]],
                       [1 + 2.0**-10, inf, 0, nan], f64, f16),
    "setp.lt.f32, setp.ne.f32": (lambda a, b: (a < b) + 2 * (a != b),
                                 ([nan, 1, 0.0, 1], [1, nan, -0.0, 2]), [2, 2, 0, 3], f32, i64),
    "popc.b32": (lambda a: cuda.popc(a), [WORDS], [0, 1, 1, 13, 32], u32, u32),
    "popc.b64": (lambda a: cuda.popc(a), [[-1, LOW]], [64, 1], i64, i64),
    "popc.b32, of 8 bits": (lambda a: cuda.popc(a), [[-1, 1]], [8, 1], i8, i8),
    "clz.b32": (lambda a: cuda.clz(a), [WORDS], [32, 31, 0, 3, 0], u32, u32),
    "clz.b64": (lambda a: cuda.clz(a), [[0, 1, -1]], [64, 63, 0], i64, i64),
    "clz.b32, of 8 bits": (lambda a: cuda.clz(a), [[0, 1, 255]], [8, 7, 0], u8, u8),
    "clz.b32, of 16 bits": (lambda a: cuda.clz(a), [[0, 1, -1]], [16, 15, 0], i16, i16),
    "brev.b32, bfind.u32": (lambda a: cuda.ffs(a), [WORDS], [0, 1, 32, 4, 1], u32, u32),
    "brev.b32": (lambda a: cuda.brev(a), [WORDS], [0, 1 << 31, 1, 0x1E6A2C48, 0xFFFFFFFF],
                 u32, u32),
    "brev.b64": (lambda a: cuda.brev(a), [[1, 2**63]], [2**63, 1], u64, u64),
    "prmt.b32": (lambda a: libdevice.byte_perm(a, 0x0A0B0C0D, 0x7104), [[0x12345678, 0xFF]],
                 [0x0A56780D, 0x0A00FF0D], i32, i32),
    "mul.hi.s64": (lambda a: libdevice.mul64hi(a, a), [[1 << 62, LOW]], [1 << 60, 1 << 62],
                   i64, i64),
    "mul24.lo.s32": (lambda a: libdevice.mul24(a, 0x1000002), [[0x7FFFFF, -1]],
                     [0xFFFFFE, -2], i32, i32),
    # libdevice's own functions where they are not the C library's.
    "__nv_fast_powf": (lambda a, b: libdevice.fast_powf(a, b), ([-2, 4], [2, 0.5]), [nan, 2],
                       f32, f32),
    "__nv_powif": (lambda a: libdevice.powif(-1.0, a), [[2**30 + 1, 2**30]], [-1, 1], i32, f32),
    "__nv_sinpi": (lambda a: libdevice.sinpi(a), [[-1, 1, -0.0, 0.5]], [-0.0, 0.0, -0.0, 1],
                   f64, f64),
    "__nv_normcdfinv": (lambda a: libdevice.normcdfinv(a), [[0.5, 0, 1]], [0.0, -inf, inf],
                        f64, f64),
    "__nv_erfcinv": (lambda a: libdevice.erfcinv(a), [[-1e-40, 0, 2]], [nan, inf, -inf],
                     f64, f64),
    "__nv_llround": (lambda a: libdevice.llround(a), [[0.5, 2.5, -0.5, nan, inf]],
                     [1, 3, -1, LOW, HIGH], f64, i64),
    "selp.b64": (lambda a: cuda.selp(a > 2, 7, 8), [[1, 3]], [8, 7], i64, i64),
}  # fmt: skip


def kernels():
    """All rows as loops; and after a barrier, in lanes of which each row needs some."""
    scope, names, lines = {"cuda": cuda}, [], []
    for k, (function, columns, *_) in enumerate(ROWS.values()):
        scope[f"f{k}"] = cuda.jit(device=True)(function)
        mine = [f"a{k}_{n}" for n in range(len(columns))]
        names += [f"x{k}", *mine]
        lines.append(f"if i < x{k}.size: x{k}[i] = f{k}({', '.join(f'{n}[i]' for n in mine)})")
    head = f"def kernel({', '.join(names)}):\n    i = cuda.grid(1)\n"
    rows = "".join(f"    {line}\n" for line in lines)
    for body in (rows, f"    cuda.syncthreads()\n{rows}"):
        exec(head + body, scope)
        yield scope["kernel"]


@np.errstate(over="ignore")
def test_instructions_give_what_ptx_says():
    for kernel in kernels():
        outs, given, wrong = [], [], []
        for _, columns, wanted, source, result in ROWS.values():
            outs.append(np.zeros(len(wanted), result))
            given += [outs[-1], *(np.array(c, source) for c in columns)]
        launch(kernel, 1, 16, *given, twice=False)
        for (row, (*_, values, _, result)), got in zip(ROWS.items(), outs, strict=True):
            wanted = np.array(values, result)
            if not np.array_equal(signed(got), signed(wanted), equal_nan=wanted.dtype.kind == "f"):
                wrong.append(f"{row}: {got}, not {wanted}")
        assert not wrong, "\n".join(wrong)


def signed(values):
    """Numbers and their signs, which zeros have, too, and of NaNs mean nothing."""
    if values.dtype.kind != "f":
        return values
    return np.stack([values, np.where(np.isnan(values), 1, np.copysign(1, values))])


@pytest.mark.usefixtures("optimised")
@pytest.mark.parametrize("fastmath", [False, True, {"contract"}])
def test_a_product_is_rounded_before_it_is_added_unless_with_fastmath(fastmath):
    out, rn = np.ones(64, f32), np.ones(64, f32)
    a, b = np.full(64, E32, f32), np.full(64, -1 - 2.0**-11, f32)
    launch(add_to_square, 1, 64, out, rn, a, b, fastmath=fastmath)
    assert (out == (2.0**-24 if fastmath else 0)).all()
    assert (rn == 0).all(), "that is what the intrinsics with _rn are for"


def add_to_square(out, rn, a, b):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = a[i] * a[i] + b[i]
        rn[i] = libdevice.fadd_rn(libdevice.fmul_rn(a[i], a[i]), b[i])
