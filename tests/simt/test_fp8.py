"""8-bit floats in kernels, against the formats' definitions: every code, and what lies between."""

import ml_dtypes
import numpy as np
import pytest
from cuda.bindings.runtime import cudaRoundMode
from numba import cuda, float32, float64, int8, int32, int64, types, uint8, uint16, uint64
from numba.cuda._internal import cuda_fp8 as fp8
from numba.cuda.extending import intrinsic
from numba.cuda.types import bfloat16, float16
from numba.cuda.vector_types import vector_types

from tests.simt.conftest import launch

DTYPES = {"e5m2": ml_dtypes.float8_e5m2, "e4m3": ml_dtypes.float8_e4m3fn,
          "e8m0": ml_dtypes.float8_e8m0fnu}  # fmt: skip
LARGEST = {"e5m2": 0x7B, "e4m3": 0x7E, "e8m0": 0xFE}
CODES = np.arange(256, dtype=np.uint8)
VALUES = {name: CODES.view(dtype).astype(float) for name, dtype in DTYPES.items()}
SATURATE, INTERPRET = fp8.saturation_t, fp8.fp8_interpretation_t


def apply(function, x, dtype):
    """`function` of each element, computed by a kernel with a thread per element."""
    call = cuda.jit(device=True)(function)

    def kernel(out, x):
        i = cuda.grid(1)
        if i < x.size:
            out[i] = call(x[i])

    out = np.zeros(len(x), dtype)
    launch(kernel, -(-len(x) // 256), 256, out, x)
    return out


def between(name):
    """The format's numbers, halfway points, and the float64 next to each; infinities; NaN."""
    finite = VALUES[name][: LARGEST[name] + 1]
    beyond = finite[-1] * (2 if name == "e8m0" else 1) + (finite[-1] - finite[-2])
    points = np.concatenate([finite, (finite + np.append(finite[1:], beyond)) / 2, [0.0, 1e300]])
    points = np.concatenate([points, np.nextafter(points, 0), np.nextafter(points, np.inf)])
    return np.concatenate([points, -points, [np.inf, -np.inf, np.nan]])


def nearest(name, x):
    """Codes of e5m2 or e4m3, to nearest even; LARGEST + 1 for what is too large."""
    top = LARGEST[name]
    grid = VALUES[name][: top + 1]
    grid = np.append(grid, 2 * grid[-1] - grid[-2])
    size = np.minimum(np.abs(x), grid[-1])
    low = np.clip(np.searchsorted(grid, size, "right") - 1, 0, top)
    middle = (grid[low] + grid[low + 1]) / 2
    codes = low + ((size > middle) | ((size == middle) & (low % 2 == 1)))
    return np.where(np.isnan(x), 0x7F, codes).astype(np.uint8)


@pytest.mark.parametrize("name", ["e5m2", "e4m3"])
def test_rounds_to_nearest_even_and_saturates(name):
    how = INTERPRET.E5M2 if name == "e5m2" else INTERPRET.E4M3
    finite, free = SATURATE.SATFINITE, SATURATE.NOSAT
    x = between(name)
    single = np.concatenate([x, np.arange(65536).astype(np.uint16).view(np.float16)])
    with np.errstate(over="ignore", invalid="ignore"):
        single = single.astype(np.float32)
    for values, convert in ((x, fp8.cvt_double_to_fp8), (single, fp8.cvt_float_to_fp8)):
        number = ~np.isnan(values)
        sign, codes = np.signbit(values) * 0x80, nearest(name, values.astype(float))
        for saturation, limit in (
            (finite, LARGEST[name]),
            (free, 0x7C if name == "e5m2" else 0x7F),
        ):
            got = apply(lambda v, f=convert, s=saturation: f(v, s, how), values, np.uint8)
            wanted = sign | np.where(codes > LARGEST[name], limit, codes)
            np.testing.assert_array_equal(got[number], wanted[number])
            assert np.isnan(VALUES[name][got[~number]]).all()


def test_e8m0_rounds_up_or_down_and_drops_the_sign():
    finite, free = SATURATE.SATFINITE, SATURATE.NOSAT
    up, down = cudaRoundMode.cudaRoundPosInf, cudaRoundMode.cudaRoundZero
    x = between("e8m0")
    x = x[~np.isnan(x)]
    with np.errstate(divide="ignore"):
        mantissa, exponent = np.frexp(np.abs(x))  # |x| = mantissa * 2**exponent, mantissa >= 0.5
    floor = np.where(x == 0, -127, np.where(np.isinf(x), 128, exponent - 1))
    ceiling = floor + ((mantissa > 0.5) & (x != 0) & np.isfinite(x))
    for mode, exact in ((up, ceiling), (down, floor)):
        codes = np.clip(exact + 127, 0, 255)
        got = apply(lambda v, m=mode: fp8.cvt_double_to_e8m0(v, free, m), x, np.uint8)
        # A float64 beyond float32 is rounded to the largest float32 first.
        infinite = np.isinf(x) | (mode == up)
        np.testing.assert_array_equal(got, np.where(infinite, codes, np.minimum(codes, 254)))
        got = apply(lambda v, m=mode: fp8.cvt_double_to_e8m0(v, finite, m), x, np.uint8)
        np.testing.assert_array_equal(got, np.minimum(codes, 254))
    assert apply(lambda v: fp8.cvt_float_to_e8m0(v, finite, up), np.float32([np.nan]), int) == 255


@pytest.mark.parametrize("name", DTYPES)
def test_every_code_becomes_every_type(name):
    make, exact = getattr(fp8, f"fp8_{name}"), VALUES[name]
    x = exact.astype(np.float32)
    np.testing.assert_array_equal(apply(lambda v: float32(make(v)), x, np.float32), saturated(name))
    np.testing.assert_array_equal(apply(lambda v: float64(make(v)), x, float), saturated(name))
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(
            apply(lambda v: float16(make(v)), x, np.float16), saturated(name).astype(np.float16)
        )
    brain = apply(lambda v: float32(bfloat16(make(v))), x, np.float32)
    np.testing.assert_array_equal(brain, saturated(name))
    for typ in (int8, uint8, uint16, int32, int64, uint64):
        dtype = np.dtype(typ.name)
        limits, nan = np.iinfo(dtype), 1 << 63 if dtype.itemsize == 8 else 0
        got = apply(lambda v, t=typ: t(make(v)), x, dtype)
        for value, result in zip(saturated(name), got, strict=True):
            if np.isnan(value):
                wanted = np.array(nan, np.uint64).astype(dtype)
            else:
                wanted = min(max(int(value), int(limits.min)), int(limits.max))
            assert result == wanted, value
    truth = np.ones(256, bool) if name == "e8m0" else (CODES & 0x7F) != 0
    np.testing.assert_array_equal(apply(lambda v: types.boolean(make(v)), x, bool), truth)


def saturated(name):
    """The numbers of all codes; constructors make the largest number of an infinity."""
    largest = VALUES[name][LARGEST[name]]
    return np.where(np.isinf(VALUES[name]), np.copysign(largest, VALUES[name]), VALUES[name])


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.int32, np.int64, np.uint64])
def test_integers_become_8_bit_floats(name, dtype):
    make, limits = getattr(fp8, f"fp8_{name}"), np.iinfo(dtype)
    edges = [s * ((1 << k) + d) for k in range(64) for d in (-1, 0, 1) for s in (1, -1)]
    x = np.array([e for e in edges if limits.min <= e <= limits.max], dtype)
    got = apply(lambda v: float64(make(v)), x, float)
    if name == "e8m0":
        wanted = [2.0 ** max((abs(int(v)) - 1).bit_length(), 0) if v else 2.0**-127 for v in x]
    else:
        codes = np.minimum(nearest(name, x.astype(float)), LARGEST[name])
        wanted = np.copysign(VALUES[name][codes], x.astype(float))
    np.testing.assert_array_equal(got, wanted)


def as_floats(typing, vector):
    """A vector of 8-bit floats as one of float32: numba-cuda has the cast, but no name for it."""
    lanes = 2 if "x2" in vector.name else 4
    wide = vector_types[f"float32x{lanes}"]
    return wide(vector), lambda context, builder, sig, args: context.cast(
        builder, args[0], vector, wide
    )


def test_vectors_pack_the_first_element_lowest(run_pes):
    def body():
        # In a PE: in a process that extends Numba no kernel is kept, nor taken over.
        unpacked = intrinsic(as_floats)
        pair, quad, wide = cuda.float32x2, cuda.float32x4, cuda.float64x4
        two, four, exponents = fp8.fp8x2_e4m3, fp8.fp8x4_e5m2, fp8.fp8x4_e8m0
        finite, e4m3 = SATURATE.SATFINITE, INTERPRET.E4M3

        def kernel(out, packed):
            a = unpacked(two(pair(1.5, -448.0)))
            b = unpacked(four(quad(0.25, 3.0, -1e9, 0.0)))
            c = unpacked(exponents(wide(1.0, 3.0, -4.0, 0.75)))
            out[0], out[1] = a.x, a.y
            out[2], out[3], out[4], out[5] = b.x, b.y, b.z, b.w
            out[6], out[7], out[8], out[9] = c.x, c.y, c.z, c.w
            packed[0] = fp8.cvt_float2_to_fp8x2(pair(1.5, -448.0), finite, e4m3)

        out, packed = np.zeros(10, np.float32), np.zeros(1, np.uint16)
        launch(kernel, 1, 1, out, packed)
        assert out.tolist() == [1.5, -448.0, 0.25, 3.0, -57344.0, 0.0, 1.0, 4.0, 4.0, 1.0]
        assert packed[0] == 0xFE3C

    run_pes(body, 1)


@pytest.mark.parametrize("source", [np.int64, np.uint64])
def test_64_bit_integers_are_rounded_once(source):
    """2**62 + 2**54 + 1 is nearer to the next bfloat16, but float64 puts it halfway between."""
    x = np.array([2**62 + 2**54, 2**62 + 2**54 + 1, 2**62 + 3 * 2**54 - 1, 2**62 + 3 * 2**54])
    got = apply(lambda v: float64(float32(bfloat16(v))), x.astype(source), float)
    assert got.tolist() == [2.0**62, 2.0**62 + 2.0**55, 2.0**62 + 2.0**55, 2.0**62 + 2.0**56]


def test_a_long_loop_of_conversions():
    """numba-cuda's functions of small floats take stack where they are called."""

    def kernel(out, x, turns):
        for _ in range(turns):
            for i in range(x.size):
                out[0] += float32(x[i])

    out = np.zeros(1, np.float32)
    launch(kernel, 1, 1, out, np.ones(64, ml_dtypes.bfloat16), 1 << 13)
    assert out[0] == 64 << 13
