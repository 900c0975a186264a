"""bfloat16 and 8-bit floats: arrays on the host and in kernels, PyTorch's dtypes, what is refused.

What operations do with them is in the tables of the conformance tests.
"""

import ml_dtypes
import numpy as np
import pytest
from gpushmem.kernels import AllReduce
from numba import cuda, float32

import gpushmem as shmem
from gpushmem.errors import ArgumentError

FLOAT8 = ["float8_e4m3fn", "float8_e5m2"]
SMALL = ["bfloat16", *FLOAT8]
OTHERS = ["int4", "float8_e3m4", "float8_e4m3fnuz", "float8_e4m3b11fnuz", "float4_e2m1fn"]
POSSIBLE = "float64, complex64, .*, bfloat16, float8_e4m3fn, float8_e5m2, and records of these$"


@pytest.mark.parametrize("name", SMALL)
def test_arrays_of_small_floats(alone, name):
    dtype = np.dtype(getattr(ml_dtypes, name))
    values = np.array([1.5, -2, 0], dtype)
    for asked in (name, dtype, dtype.type):
        made = (shmem.zeros(3, asked), shmem.ones(3, asked), shmem.full(3, 1.5, asked),
                shmem.array([1.5, -2, 0], asked), shmem.device_array(3, asked),
                shmem.empty(3, asked), shmem.zeros(3 * dtype.itemsize, "u1").view(asked),
                shmem.to_device(values))  # fmt: skip
        for array, first in zip(made[:4], (0, 1, 1.5, 1.5), strict=True):
            assert array.numpy()[0] == first
        for array in made:
            array[:] = np.array([1.5, -2, 300.0])  # float64
            array[2] = 0
            got = array.numpy()
            assert (got.dtype, array.dtype) == (dtype, dtype)
            assert got.tobytes() == values.tobytes()
            assert type(array[1]) is dtype.type
    made[0].copy_from(values[::-1])
    assert made[0].numpy().tolist() == [0, -2, 1.5]


@pytest.mark.host_memory
@pytest.mark.parametrize("name", SMALL)
def test_numpy_sees_their_dtype_and_shows_their_values(alone, name):
    a = shmem.full((2, 2), 0.5, name)
    b, pair = a[:, 1], shmem.zeros(2, [("a", name), ("b", "i4")])
    for array in (a, b, pair):
        view = np.asarray(array)
        assert view.dtype == array.dtype
        assert np.shares_memory(view, array.native())
    np.asarray(b)[0] = 2
    assert a[0, 1] == 2
    start = f"SymmetricArray([0.5, 0.5], shape=(2,), dtype={name}, pe=0"
    assert repr(a[:, 0]).startswith(start)
    assert (a + a).dtype == a.dtype
    assert shmem.register(shmem.to_device(a)).dtype == a.dtype


@pytest.mark.parametrize("dtype", OTHERS)
@pytest.mark.parametrize("make", [
    lambda dtype: shmem.zeros(3, dtype), lambda dtype: shmem.zeros(3, np.dtype(dtype)),
    lambda dtype: shmem.zeros(3, [("a", dtype)]), lambda dtype: shmem.full(3, 1, dtype),
    lambda dtype: shmem.array(np.zeros(3, dtype)), lambda dtype: shmem.device_array(3, dtype),
    lambda dtype: shmem.to_device(np.zeros(3, dtype)),
    lambda dtype: shmem.zeros(3, "u1").view(dtype),
    lambda dtype: shmem.register(np.zeros(3, dtype)),
    lambda dtype: AllReduce(size=3, dtype=dtype),
])  # fmt: skip
def test_other_dtypes_of_ml_dtypes_are_refused_with_those_possible(alone, make, dtype):
    with pytest.raises(TypeError, match=rf"cannot have dtype .*{dtype}.* {POSSIBLE}"):
        make(dtype)


# --- in kernels


@shmem.jit
def compute(x, y, out, like):
    """The same source for all of them, which GPUs' compiler takes as well."""
    i = cuda.grid(1)
    if i < x.size:
        out[i] = float32(x[i]) * float32(y[i]) + 1
        like[i] = x[i] * y[i] + 1


@pytest.mark.parametrize("name", SMALL)
def test_kernels_compute_in_float32_and_store(alone, name):
    dtype = np.dtype(name)
    rng = np.random.default_rng(3)
    x, y = rng.uniform(-15, 15, (2, 256)).astype(dtype)
    out, like = shmem.zeros(256, "float32"), shmem.zeros(256, dtype)
    compute[2, 128](shmem.array(x), shmem.to_device(y), out, like)
    wanted = x.astype("f4") * y.astype("f4") + 1
    assert out.numpy().tolist() == wanted.tolist()
    if name == "bfloat16":  # has arithmetic of its own: rounded after each step
        wanted = (x.astype("f4") * y.astype("f4")).astype(dtype).astype("f4") + 1
    assert like.numpy().tobytes() == wanted.astype(dtype).tobytes()


@shmem.jit
def store(dst, values):
    dst[0], dst[1], dst[2] = values[0], dst.dtype.type(values[1]), values[2]
    dst[3], dst[4] = 7, np.int8(-3)


@pytest.mark.parametrize("source", ["float16", "float32", "float64", "bfloat16", "int32"])
@pytest.mark.parametrize("name", FLOAT8)
def test_numbers_are_converted_when_they_are_stored(alone, name, source):
    dst = shmem.zeros(5, name)
    store[1, 1](dst, shmem.array(np.array([10, -1, 2], source)))
    assert dst.numpy().tolist() == [10, -1, 2, 7, -3]


@pytest.mark.parametrize(("name", "largest"), [("float8_e4m3fn", 448), ("float8_e5m2", 57344)])
def test_what_is_too_large_becomes_the_largest_in_kernels(alone, name, largest):
    dst = shmem.zeros(5, name)
    store[1, 1](dst, shmem.array(np.array([1e9, -1e9, np.nan])))
    got = dst.numpy().astype(float)
    assert got[:2].tolist() == [largest, -largest]
    assert np.isnan(got[2])


@shmem.jit
def scale(x, factor, offsets):
    x[0], x[1] = float32(x[0]) * float32(factor), offsets[1]


@pytest.mark.parametrize("name", SMALL)
def test_scalars_are_arguments_of_kernels(alone, name):
    x, make = shmem.full(2, 3, name), np.dtype(name).type
    scale[1, 1](x, make(-2), (make(7), make(0.5)))
    assert x.numpy().tolist() == [-6, 0.5]


@shmem.jit
def elements(x, value, got):
    shmem.p(x, value, 0)
    shmem.p(x[1:], x.dtype.type(2 * float32(value)), 0)
    shmem.quiet()
    got[0] = shmem.g(x, 0) + float32(shmem.g(x[1:], 0))


@pytest.mark.parametrize("name", SMALL)
def test_p_converts_and_g_returns_an_element(alone, name):
    x, got = shmem.zeros(3, name), shmem.zeros(1, "float32")
    elements[1, 1](x, np.float32(1.5), got)
    assert (got.numpy()[0], x.numpy().tolist()) == (4.5, [1.5, 3, 0])
    shmem.p(x[2:], 2.5, 0)
    assert shmem.g(x[2:], 0) == 2.5
    assert type(shmem.g(x[2:], 0)) is np.dtype(name).type


# --- reductions

REFUSED = '"{}" is of .*, not of fp8_e.*; 8-bit floats are moved, not reduced: convert them to'


@pytest.mark.parametrize("name", FLOAT8)
@pytest.mark.parametrize("op", ["sum", "max", "xor"])
def test_reductions_of_8_bit_floats_are_refused(alone, name, op):
    x = shmem.ones(4, name)

    @shmem.jit
    def reduce(x):
        shmem.reduce(shmem.TEAM_WORLD, x, x, op)

    with pytest.raises(ArgumentError, match=REFUSED.format(op)):
        shmem.reduce(shmem.TEAM_WORLD, x, x, op)
    with pytest.raises(Exception, match=REFUSED.format(op)):
        reduce[1, 1](x)


@pytest.mark.cpu_backend
def test_sums_of_bfloat16_are_rounded_after_each_step(run_pes):
    """As NVSHMEM adds them: (256 + 1) + 1 is 256; with one rounding at the end it were 258."""

    @shmem.jit
    def reduce(dst, src):
        shmem.reduce(shmem.TEAM_WORLD, dst, src, "sum")

    def body():
        shmem.init()
        src = shmem.full(300, 1 if shmem.my_pe() else 256, "bfloat16")
        dst = shmem.zeros(300, "bfloat16")
        for call in (
            reduce[1, 1],
            lambda dst, src: shmem.reduce(shmem.TEAM_WORLD, dst, src, "sum"),
        ):
            dst[:] = 0
            call(dst, src)
            shmem.barrier_all()
            assert set(dst.numpy().tolist()) == {256}
        shmem.finalize()

    run_pes(body, 3)
