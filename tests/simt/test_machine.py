"""What kernels find in the machine: mathematics, bits, 16-bit floats, atomics, memory."""

import math

import ml_dtypes
import numpy as np
import pytest
import scipy.special
from numba import cuda, float32
from numba.core.errors import TypingError
from numba.cuda import bf16, fp16, libdevice
from numba.np.numpy_support import from_dtype

from gpushmem.errors import BackendUnavailable, KernelError
from tests.simt.conftest import launch

BFLOAT = np.dtype(ml_dtypes.bfloat16)


def apply(function, *columns, dtype=None):
    """`function` of each row, computed by a kernel with a thread per row."""
    stub = function.__module__ == "numba.cuda.libdevice"  # numba-cuda knows these by identity
    call = function if stub else cuda.jit(device=True)(function)
    names = ", ".join(f"c{k}" for k in range(len(columns)))
    items = ", ".join(f"c{k}[i]" for k in range(len(columns)))
    scope = {"cuda": cuda, "call": call}
    exec(f"def kernel(out, {names}):\n    i = cuda.grid(1)\n    out[i] = call({items})", scope)
    columns = [np.asarray(c) for c in columns]
    out = np.zeros(columns[0].shape, dtype or columns[0].dtype)
    assert launch(scope["kernel"], 1, out.size, out, *columns) == "loops"
    return out


X = np.array([-3.5, -1.0, -0.75, -0.5, -1e-9, 0.0, 0.1, 0.5, 0.75, 0.9, 1.0, 2.5, 20.0])
UNIT = X[np.abs(X) <= 1]
POSITIVE = np.abs(X) + 0.01


FUNCTIONS = [
    (math.sin, np.sin, X), (math.exp, np.exp, X), (math.log, np.log, POSITIVE),
    (math.sqrt, np.sqrt, POSITIVE), (math.tanh, np.tanh, X), (math.erf, scipy.special.erf, X),
    (math.lgamma, scipy.special.gammaln, POSITIVE), (math.acos, np.arccos, UNIT),
    (libdevice.cbrt, np.cbrt, X), (libdevice.rsqrt, lambda x: 1 / np.sqrt(x), POSITIVE),
    (libdevice.sinpi, scipy.special.sinpi if hasattr(scipy.special, "sinpi") else
     (lambda x: np.sin(np.pi * x)), X),
    (libdevice.cospi, lambda x: np.cos(np.pi * x), X),
    (libdevice.normcdf, scipy.special.ndtr, X), (libdevice.erfcx, scipy.special.erfcx, X),
    (libdevice.erfinv, scipy.special.erfinv, UNIT * 0.999),
    (libdevice.erfcinv, scipy.special.erfcinv, np.array([1e-300, 1e-10, 0.2, 1.0, 1.9])),
    (libdevice.normcdfinv, scipy.special.ndtri, np.array([1e-12, 0.3, 0.5, 0.999])),
    (libdevice.j0, scipy.special.j0, X), (libdevice.exp10, lambda x: 10**x, X),
]  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_mathematics(dtype):
    scope, lines, columns = {"cuda": cuda}, [], []
    for k, (function, _, x) in enumerate(FUNCTIONS):
        name = function.__name__
        single = dtype == np.float32 and function.__module__ == "numba.cuda.libdevice"
        scope[f"f{k}"] = getattr(libdevice, f"{name}f") if single else function
        lines.append(f"    out[{k}, i] = f{k}(x[{k}, i])\n")
        tiny = single and "inv" in name and "erfinv" not in name
        columns.append(np.resize(x[x > 1e-30] if tiny else x, X.size))
    exec(f"def kernel(out, x):\n    i = cuda.grid(1)\n{''.join(lines)}", scope)
    x = np.array(columns).astype(dtype)
    got = np.zeros_like(x)
    assert launch(scope["kernel"], 1, X.size, got, x) == "loops"
    tolerance = 2e-13 if dtype == np.float64 else 4e-6
    for (function, reference, _), row, found in zip(FUNCTIONS, x, got, strict=True):
        with np.errstate(all="ignore"):
            wanted = reference(row.astype(np.float64))
        np.testing.assert_allclose(
            found, wanted, rtol=tolerance, atol=tolerance / 10, err_msg=function.__name__
        )


ONE_ULP = np.spacing(np.float32(1))


@pytest.mark.parametrize(
    ("name", "args", "exact"),
    [
        ("fadd", (1.0, 1e-10), 1 + 1e-10), ("fsub", (1.0, 1e-10), 1 - 1e-10),
        ("fmul", (1 + ONE_ULP, 1 + ONE_ULP), (1 + float(ONE_ULP)) ** 2),
        ("fdiv", (1.0, 3.0), 1 / 3),
        ("frcp", (3.0,), 1 / 3), ("fsqrt", (2.0,), 2**0.5), ("fmaf", (1.0, 1.0, 1e-10), 1 + 1e-10),
        ("fdiv", (-1.0, 3.0), -1 / 3),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("optimised")
def test_arithmetic_with_directed_rounding(name, args, exact):
    args = [np.float32(a) for a in args]
    near = np.float32(exact)
    below = near if float(near) <= exact else np.nextafter(near, np.float32(-np.inf))
    above = near if float(near) >= exact else np.nextafter(near, np.float32(np.inf))
    wanted = {"rn": near, "rd": below, "ru": above, "rz": below if exact > 0 else above}
    assert below < above
    for mode, value in wanted.items():
        function = getattr(libdevice, f"{name}_{mode}")
        got = apply(function, *(np.array([a]) for a in args))
        assert got[0] == value, mode


@pytest.mark.parametrize(
    ("name", "dtype", "values"),
    [
        ("float2int", np.int32, {"rn": [2, 2, -2, 4], "rd": [1, 2, -3, 3], "ru": [2, 3, -2, 4],
                                 "rz": [1, 2, -2, 3]}),
        ("float2ull", np.uint64, {"rn": [2, 2, 0, 4], "rd": [1, 2, 0, 3]}),
    ],
)  # fmt: skip
def test_floats_to_integers(name, dtype, values):
    x = np.array([1.5, 2.5, -2.5, 3.7], np.float32)
    for mode, wanted in values.items():
        function = getattr(libdevice, f"{name}_{mode}")
        got = apply(function, x, dtype=dtype)
        np.testing.assert_array_equal(got, np.array(wanted, dtype))
    saturated = apply(lambda v: libdevice.float2int_rz(v), np.float32([3e9, -3e9, np.nan]),
                      dtype=np.int32)  # fmt: skip
    np.testing.assert_array_equal(saturated, [2**31 - 1, -(2**31), 0])
    # PTX ISA, "cvt": a NaN is 0 only where neither side has 64 bits.
    for call, source, typ, wanted in (
        (lambda v: libdevice.float2ll_rz(v), np.float32, np.int64, -(1 << 63)),
        (lambda v: libdevice.double2ull_rz(v), np.float64, np.uint64, 1 << 63),
        (lambda v: libdevice.double2int_rz(v), np.float64, np.int32, -(1 << 31)),
    ):
        assert apply(call, source([np.nan]), dtype=typ) == wanted


# --- what PTX defines and LLVM leaves open


def converted(value, dtype, source):
    """PTX ISA, "cvt", from a float to an integer; one of 8 bits is half of one of 16."""
    name, bits = np.dtype(dtype).kind, 8 * np.dtype(dtype).itemsize
    wide = max(bits, 16)
    low, high = (-(1 << wide - 1), (1 << wide - 1) - 1) if name == "i" else (0, (1 << wide) - 1)
    if math.isnan(value):
        whole = 1 << wide - 1 if wide == 64 or source == np.float64 else 0
    else:
        whole = low if value <= low else high if value >= high else int(value)
    return np.array(whole % (1 << bits), f"u{bits // 8}").astype(dtype)


def convert(i, x, i8, i16, i32, i64, u8, u16, u32, u64):
    i8[i], i16[i], i32[i], i64[i] = x[i], x[i], x[i], x[i]
    u8[i], u16[i], u32[i], u64[i] = x[i], x[i], x[i], x[i]


def in_every_form(body, names):
    """Kernels that call `body(i, ...)`: in loops; in step, half of the threads at a time."""
    head, scope = f"def kernel({names}):\n    i = cuda.grid(1)\n", {"cuda": cuda}
    scope["body"] = cuda.jit(device=True)(body)
    call = f"body(i, {names})\n"
    exec(f"{head}    {call}", scope)
    yield scope["kernel"]
    exec(f"{head}    cuda.syncthreads()\n    if i % 2: {call}    else: {call}", scope)
    yield scope["kernel"]


FLOATS = [0.0, 2.9, -3.7, 127.5, 128.0, 300.0, -300.0, 40_000.0, -40_000.0, 3e9, -3e9, 5e9, 1e19,
          -1e19, 2e19, np.inf, -np.inf, np.nan]  # fmt: skip


@pytest.mark.parametrize("source", [np.float32, np.float64])
def test_floats_that_do_not_fit_an_integer_are_clamped(source):
    x = np.array(FLOATS, source)
    types = [np.dtype(f"{kind}{size}") for kind in "iu" for size in (1, 2, 4, 8)]
    for kernel in in_every_form(convert, "x, i8, i16, i32, i64, u8, u16, u32, u64"):
        got = [np.zeros(x.size, t) for t in types]
        launch(kernel, 1, x.size, x, *got)
        for column, dtype in zip(got, types, strict=True):
            wanted = np.array([converted(float(v), dtype, source) for v in x])
            np.testing.assert_array_equal(column, wanted, err_msg=f"{source}, {dtype}")


def shift(i, x, n, left, right, logical):
    left[i], right[i] = x[i] << n[i], x[i] >> n[i]
    logical[i] = np.uint64(x[i]) >> np.uint64(n[i])


def test_shifts_by_all_bits_and_more():
    """PTX clamps a count, of which it has 32 bits."""
    counts = [0, 1, 5, 31, 32, 63, 64, 65, 100, -1, 1 << 32, (1 << 32) + 3]
    x, n = (c.ravel() for c in np.meshgrid([1, -1, 7, -(2**63)], counts))
    for kernel in in_every_form(shift, "x, n, left, right, logical"):
        left, right, logical = np.zeros_like(x), np.zeros_like(x), np.zeros(x.size, np.uint64)
        launch(kernel, 1, x.size, x, n, left, right, logical)
        by = [min(int(k) % 2**32, 64) for k in n]
        wanted = [(int(v) % 2**64 << k) % 2**64 for v, k in zip(x, by, strict=True)]
        assert left.view(np.uint64).tolist() == wanted
        assert right.tolist() == [int(v) >> k for v, k in zip(x, by, strict=True)]
        assert logical.tolist() == [int(v) % 2**64 >> k for v, k in zip(x, by, strict=True)]


def test_large_integers_to_floats_with_directed_rounding():
    x = np.array([2**64 - 1, 2**63 + 1, 2**24 + 1, 7], np.uint64)
    down = apply(lambda v: libdevice.ull2float_rd(v), x, dtype=np.float32)
    up = apply(lambda v: libdevice.ull2float_ru(v), x, dtype=np.float32)
    for k, value in enumerate(map(int, x)):
        assert int(down[k]) <= value <= int(up[k])
        assert down[k] == up[k] or np.nextafter(down[k], np.float32(np.inf)) == up[k]


# --- 16 bits

SAMPLE = np.array([0.0, 1.0, -1.0, 1 / 3, 257.0, 65504.0, 1e-7, 3.14159, -2.71828, 1000.5])


@pytest.mark.usefixtures("optimised")
def test_float16_arithmetic_is_numpys():
    a, b = SAMPLE.astype(np.float16), SAMPLE[::-1].astype(np.float16)
    with np.errstate(all="ignore"):
        for call, wanted in (
            (lambda x, y: x + y, a + b), (lambda x, y: x - y, a - b), (lambda x, y: x * y, a * b),
            (lambda x, y: fp16.hdiv(x, y), a / b), (lambda x, y: fp16.hmax(x, y), np.fmax(a, b)),
            (lambda x, y: fp16.hfma(x, y, x),
             (a.astype(float) * b.astype(float) + a.astype(float)).astype(np.float16)),
        ):  # fmt: skip
            np.testing.assert_array_equal(apply(call, a, b), wanted)
    positive = np.abs(a)
    np.testing.assert_array_equal(apply(lambda x: fp16.hsqrt(x), positive), np.sqrt(positive))
    np.testing.assert_array_equal(apply(lambda x: math.floor(x), a), np.floor(a))
    less = apply(lambda x, y: x < y, a, b, dtype=np.bool_)
    np.testing.assert_array_equal(less, a < b)


def test_floats_become_float16_and_back():
    x = np.concatenate([SAMPLE, [65519.0, 65520.0, 2049.0, 2051.0, 1 + 2**-11 + 2**-40]])
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(
            apply(lambda v: np.float16(v), x, dtype=np.float16), x.astype(np.float16)
        )
    half = x[:10].astype(np.float16)
    np.testing.assert_array_equal(apply(lambda v: float32(v), half, dtype=np.float32),
                                  half.astype(np.float32))  # fmt: skip


def step(value, towards):
    return np.nextafter(value, BFLOAT.type(towards))


@pytest.mark.parametrize("mode", ["rn", "rd", "ru", "rz"])
@pytest.mark.parametrize("source", ["float32", "int16", "uint32", "int64"])
def test_conversions_to_bfloat16(source, mode):
    convert, back = getattr(bf16, f"{source}_to_bfloat16_{mode}"), bf16.bfloat16_to_float32
    x = np.array([1, 3, 257, 259, 1001, 32001], source)
    if np.dtype(source).kind == "i":
        x = np.concatenate([x, -x])
    if np.dtype(source).kind == "f":
        x = np.concatenate([x, -x, np.float32([1 / 3, -1e-20, 3.4e38])])
    got = apply(lambda v: back(convert(v)), x, dtype=np.float32)
    for value, result in zip(x, got, strict=True):
        near = value.astype(BFLOAT)
        exact, rounded = float(value), float(near)
        if (mode == "rd" and rounded > exact) or (mode == "rz" and rounded > exact > 0):
            near = step(near, -np.inf)
        elif (mode == "ru" and rounded < exact) or (mode == "rz" and rounded < exact < 0):
            near = step(near, np.inf)
        assert result == float(near), value


# --- atomics


def atomic_kernel(ops, dtype, place, size):
    """A kernel that applies operation k to element (k, 2) of `target`; of shared memory, or not."""
    scope = {"cuda": cuda, "dtype": from_dtype(np.dtype(dtype))}
    flat, array = len(ops) * 3, "target"
    begin = end = ""
    if place != "global":
        array = "shared"
        begin = f"""
    shared = cuda.shared.array({0 if place == "dynamic" else flat}, dtype)
    for k in range(i, {flat}, {size}):
        shared[k] = target[k // 3, k % 3]
    {"cuda.syncwarp()" if place == "lockstep" else ""}
    cuda.syncthreads()"""
        end = f"""
    cuda.syncthreads()
    for k in range(i, {flat}, {size}):
        target[k // 3, k % 3] = shared[k]"""
    calls = "".join(
        f"\n    old[{k}, i] = cuda.atomic.{op}({array}, "
        f"{f'({k}, 2)' if place == 'global' else 3 * k + 2}, values[{k}, i])"
        for k, op in enumerate(ops)
    )
    exec(f"def kernel(target, old, values):\n    i = cuda.grid(1){begin}{calls}{end}\n", scope)
    return scope["kernel"]


def gather_atomics(cases, dtype, place):
    """Apply each case (operation, values, start) by all threads at once; results and old values."""
    values = np.array([values for _, values, _ in cases]).astype(dtype)
    target = np.repeat(np.array([[start] for *_, start in cases]).astype(dtype), 3, axis=1)
    start, old = target.copy(), np.zeros_like(values)
    blocks = 2 if place == "global" else 1
    kernel = atomic_kernel([op for op, *_ in cases], dtype, place, values.shape[1])
    nbytes = target.nbytes if place == "dynamic" else 0
    threads = values.shape[1] // blocks
    kind = launch(kernel, blocks, threads, target, old, values, shared=nbytes, twice=False)
    if place != "global":
        assert kind == "lockstep"
    np.testing.assert_array_equal(target[:, :2], start[:, :2])
    return target[:, 2], old


@pytest.mark.parametrize(
    ("dtype", "place"),
    [
        *((dtype, "global") for dtype in ("i4", "u4", "i8", "u8", "f4", "f8")),
        *((dtype, "shared") for dtype in ("i4", "u8", "f4")),
        ("i8", "dynamic"), ("f8", "lockstep"),
    ],
)  # fmt: skip
def test_atomics_on_every_dtype(dtype, place):
    values, kind = np.arange(1, 65), np.dtype(dtype).kind
    with_nan = np.where(values % 7 == 0, np.nan, values)
    nines = np.full(64, 9)
    # Operation, values, start -> what must be there then.
    cases = [
        ("add", values, 5, 5 + values.sum()), ("sub", values, 5000, 5000 - values.sum()),
        ("max", values, 30, 64), ("min", values, 30, 1),
    ]  # fmt: skip
    if kind == "f":
        cases += [
            ("nanmax", with_nan, np.nan, 64), ("nanmin", with_nan, np.nan, 1),
            ("max", values, np.nan, np.nan), ("max", with_nan, 3, 64),
        ]  # fmt: skip
    else:
        cases += [
            ("or_", values, 0, 127), ("and_", values | 64, 255, 64),
            ("xor", values, 0, np.bitwise_xor.reduce(values)), ("exch", values, 0, None),
        ]  # fmt: skip
    if kind == "u":
        cases += [("inc", nines, 0, 64 % 10), ("dec", nines, 3, (3 - 64) % 10)]
    found, old = gather_atomics([case[:3] for case in cases], dtype, place)
    for got, (op, *_, wanted) in zip(found, cases, strict=True):
        assert got in values if wanted is None else np.array_equal(got, wanted, equal_nan=True), op
    assert old[0].min() == 5


def test_compare_and_swap():
    def kernel(target, won):
        i = cuda.grid(1)
        if cuda.atomic.cas(target, 0, 0, i + 1) == 0:
            cuda.atomic.add(won, 0, 1)
        cuda.atomic.compare_and_swap(target[1:], 7, 8)

    target, won = np.array([0, 7], np.int32), np.zeros(1, np.int32)
    launch(kernel, 4, 64, target, won)
    assert won[0] == 1
    assert 1 <= target[0] <= 256
    assert target[1] == 8


# --- memory


def test_constant_arrays_and_records():
    table = np.arange(12, dtype=np.float32).reshape(3, 4)
    pair = np.dtype([("a", np.int32), ("b", np.float64, (2,))], align=True)

    def kernel(records, out):
        fixed = cuda.const.array_like(table)
        i = cuda.grid(1)
        out[i] = fixed[i // 4, i % 4] + records[i].a + records[i].b[1]

    records = np.zeros(12, pair)
    records["a"], records["b"][:, 1] = np.arange(12), 0.5
    out = np.zeros(12)
    launch(kernel, 1, 12, records, out)
    np.testing.assert_array_equal(out, np.arange(12) * 2 + 0.5)


def test_dynamic_shared_memory_is_shared_out():
    def kernel(out):
        bytes_ = cuda.shared.array(0, np.uint8)
        words = cuda.shared.array(0, np.int32)
        t = cuda.threadIdx.x
        words[t] = 0x01010101 * (t + 1)
        cuda.syncthreads()
        out[t] = bytes_[4 * t + 1] + 1000 * words.size + 1000000 * bytes_.size

    out = np.zeros(8, np.int64)
    assert launch(kernel, 1, 8, out, shared=64, twice=False) == "lockstep"
    np.testing.assert_array_equal(out, np.arange(1, 9) + 16000 + 64000000)


def test_vector_types():
    def kernel(out):
        v = cuda.float32x4(1, 2, 3, 4)
        w = cuda.float64x2(v.x, v.w)
        out[0], out[1], out[2] = v.y, w.x, w.y

    out = np.zeros(3)
    launch(kernel, 1, 1, out)
    np.testing.assert_array_equal(out, [2, 1, 4])


def test_random_numbers_are_numba_cudas():
    from numba.cuda.random import (
        init_xoroshiro128p_states_cpu,
        xoroshiro128p_uniform_float64,
    )

    def draw(states, out):
        i = cuda.grid(1)
        out[i] = xoroshiro128p_uniform_float64(states, i)

    from numba.cuda.random import xoroshiro128p_dtype

    states = np.empty(1000, xoroshiro128p_dtype)
    init_xoroshiro128p_states_cpu(states, 7, 0)
    out = np.zeros(1000)
    launch(draw, 10, 100, states, out)
    assert 0 <= out.min() < 0.01
    assert 0.99 < out.max() < 1
    assert len(np.unique(out)) == 1000


# --- what is not there


def test_a_ufunc_that_numba_cuda_lacks_is_named():
    def kernel(x):
        x[0] = np.exp(x[0])

    with pytest.raises(TypingError, match=r"np\.exp for kernels; use math\.exp"):
        launch(kernel, 1, 1, np.ones(1))


def test_foreign_code_is_refused_with_its_name():
    foreign = cuda.declare_device("from_elsewhere", "float64(float64)")

    def kernel(x):
        x[0] = foreign(x[0])

    with pytest.raises(BackendUnavailable, match="from_elsewhere"):
        launch(kernel, 1, 1, np.ones(1))


def test_assertions_and_divisions_with_debug():
    scope = {}  # pytest rewrites the assertions of this file
    exec(
        "def kernel(x, y):\n    assert x[0] > 0, 'must be positive'\n    x[0] = x[0] // y[0]", scope
    )
    kernel = scope["kernel"]

    for x, y, match in (([-1], [1], "must be positive"), ([1], [0], "ZeroDivisionError")):
        with pytest.raises(KernelError, match=match):
            launch(kernel, 1, 1, np.array(x), np.array(y), debug=True)
