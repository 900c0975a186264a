"""`gemm_block` in kernels, and `gemm` of the host, against NumPy."""

import numpy as np
import pytest

import gpushmem as shmem

# Relative to the sum of the products' absolute values: k roundings of float32 or float64 in any
# order, and for 16-bit floats one rounding of the result.
UNITS = {"bfloat16": 2**-7, "float16": 2**-10, "float32": 2**-22, "float64": 2**-51}
# m, k, n
SIZES = [(3, 5, 7), (1, 1, 1), (4, 0, 3), (0, 3, 3), (3, 3, 0), (17, 33, 9), (70, 65, 66)]


@shmem.jit
def multiply(dst, a, b, accumulate):
    shmem.gemm_block(dst, a, b, accumulate)


def checked(dst, a, b, accumulate, threads=1):
    """Run it on device arrays, in a kernel and by the host, and compare with NumPy."""
    for by in (multiply[1, threads], shmem.gemm):
        before, left, right = (x.numpy().astype("float64") for x in (dst, a, b))
        by(dst, a, b, accumulate)
        start = before if accumulate else np.zeros_like(before)
        scale = np.abs(start) + np.abs(left) @ np.abs(right)
        wanted = start + left @ right
        error = np.abs(dst.numpy().astype("float64") - wanted)
        assert (error <= UNITS[str(dst.dtype)] * (left.shape[1] ** 0.5 + 2) * scale + 1e-300).all()


def random(shape, dtype, seed):
    return shmem.to_device(np.random.default_rng(seed).normal(size=shape).astype(dtype))


@pytest.mark.parametrize("dtype", UNITS)
@pytest.mark.parametrize("threads", [1, 32, 128])
def test_products_are_numpys(alone, dtype, threads):
    for m, k, n in SIZES:
        a, b, dst = random((m, k), dtype, 1), random((k, n), dtype, 2), random((m, n), dtype, 3)
        checked(dst, a, b, True, threads)
        checked(dst, a, b, False, threads)


@pytest.mark.parametrize("dtype", UNITS)
def test_parts_of_matrices_and_transposed_ones(alone, dtype):
    whole, other, out = (random((40, 50), dtype, seed) for seed in range(3))
    before = out.numpy()
    checked(out[3:13, 5:25], whole[:10, 7:37], other[:30, 1:21], False)
    after = out.numpy()
    after[3:13, 5:25] = before[3:13, 5:25]
    np.testing.assert_array_equal(after, before)  # nothing else was touched
    by_columns = random((50, 40), dtype, 4).T
    checked(out[:30, :30], whole[:30, :20], by_columns[:20, :30], True)
    checked(out[:20, :20], by_columns[:20, :9], by_columns[:9, :20], False)


@pytest.mark.parametrize("dtype", UNITS)
def test_one_row_or_one_column(alone, dtype):
    whole, other, out = (random((40, 50), dtype, seed) for seed in range(3))
    for m, k, n in [(1, 9, 7), (1, 30, 1), (9, 7, 1), (1, 1, 5), (5, 1, 1), (1, 0, 4), (4, 0, 1)]:
        before = out.numpy()
        for a in (whole[3 : 3 + m, 2 : 2 + k], whole[2 : 2 + k, 3 : 3 + m].T):
            for b in (other[5 : 5 + k, 1 : 1 + n], other[1 : 1 + n, 5 : 5 + k].T):
                checked(out[4 : 4 + m, 6 : 6 + n], a, b, True)
                checked(out[4 : 4 + m, 6 : 6 + n], a, b, False)
        after = out.numpy()
        after[4 : 4 + m, 6 : 6 + n] = before[4 : 4 + m, 6 : 6 + n]
        np.testing.assert_array_equal(after, before)


def test_each_of_many_blocks_multiplies_its_own(alone):
    @shmem.jit
    def many(dst, a, b):
        for k in range(cuda.blockIdx.x, dst.shape[0], cuda.gridDim.x):
            shmem.gemm_block(dst[k], a[k], b[k], False)

    from numba import cuda

    a, b, dst = (random((9, 6, 6), "float64", seed) for seed in range(3))
    many[4, 8](dst, a, b)
    np.testing.assert_allclose(dst.numpy(), a.numpy() @ b.numpy(), atol=1e-13)


@pytest.mark.checked
@pytest.mark.parametrize(
    ("shapes", "says"),
    [
        ([(3, 4), (3, 5), (6, 4)], "a is 3 x 5, b 6 x 4, dst 3 x 4"),
        ([(3, 4), (2, 5), (5, 4)], "a is 2 x 5, b 5 x 4, dst 3 x 4"),
    ],
)
def test_shapes_that_do_not_fit(alone, shapes, says):
    arrays = [shmem.device_array(shape, "float32") for shape in shapes]
    multiply[1, 32](*arrays, False)
    with pytest.raises(shmem.ArgumentError, match=says):
        shmem.synchronize()
    with pytest.raises(shmem.ArgumentError, match=says):  # at once
        shmem.gemm(*arrays, False, stream=0)


@pytest.mark.checked
def test_strides_that_blas_has_not(alone):
    a = shmem.device_array((8, 8), "float32")
    multiply[1, 32](a[:4, :4], a[::2, ::2], a[:4, :4], False)
    with pytest.raises(shmem.ArgumentError, match="strides of 64 and 8 bytes"):
        shmem.synchronize()
    with pytest.raises(shmem.ArgumentError, match="strides of 64 and 8 bytes"):
        shmem.gemm(a[:4, :4], a[::2, ::2], a[:4, :4], False)
    with pytest.raises(shmem.ArgumentError, match="strides of 4 and 32 bytes"):
        shmem.gemm(a.T, a, a, False)


@shmem.jit
def multiply_reversed(dst, a, b):
    shmem.gemm_block(dst, a[:, ::-1], b, False)


@pytest.mark.checked
def test_a_row_that_runs_backwards(alone):
    multiply_reversed[1, 1](*(shmem.device_array(s, "float32") for s in ((1, 4), (1, 4), (4, 4))))
    with pytest.raises(shmem.ArgumentError, match="strides of 16 and -4 bytes"):
        shmem.synchronize()


@pytest.mark.parametrize(
    ("dtypes", "says"),
    [
        (("float32", "float64", "float32"), "dst is an array of float32, a of float64"),
        (("int32", "int32", "int32"), "float16, bfloat16, float32, float64"),
    ],
)
def test_dtypes_that_are_not_multiplied(alone, dtypes, says):
    with pytest.raises(Exception, match=says):
        multiply[1, 32](*(shmem.device_array((2, 2), dtype) for dtype in dtypes), False)
    with pytest.raises(Exception, match="2 axes"):
        multiply[1, 32](*(shmem.device_array(2, "float32") for _ in range(3)), False)
    with pytest.raises(shmem.ArgumentError, match=says if "int32" in dtypes else "of one dtype"):
        shmem.gemm(*(shmem.device_array((2, 2), dtype) for dtype in dtypes), False)
    with pytest.raises(shmem.ArgumentError, match="matrices"):
        shmem.gemm(*(shmem.device_array(2, "float32") for _ in range(3)), False)


def test_products_of_a_stream_follow_each_other(alone):
    a, b, dst = (random((30, 30), "float64", seed) for seed in range(3))
    stream, product = shmem.stream(), shmem.device_array((30, 30), "float64")
    shmem.gemm(product, a, b, False, stream=stream)
    shmem.gemm(dst, product, b, False, stream=stream)
    stream.synchronize()
    np.testing.assert_allclose(dst.numpy(), a.numpy() @ b.numpy() @ b.numpy(), rtol=1e-12)


# --- many at once


def several(dtype):
    """dst, a and b: all of an array, and parts of matrices."""
    for m, k, n in [(3, 5, 7), (16, 32, 8), (1, 9, 1), (0, 3, 3)]:
        shapes = (m, n), (m, k), (k, n)
        yield [random((4, *shape), dtype, at) for at, shape in enumerate(shapes)]
        wide = [random((5, x + 2, y + 3), dtype, at) for at, (x, y) in enumerate(shapes)]
        yield [w[1:, 1 : 1 + x, 2 : 2 + y] for w, (x, y) in zip(wide, shapes, strict=True)]


@pytest.mark.parametrize("dtype", UNITS)
def test_many_products_at_once(alone, dtype):
    stream = shmem.stream()
    for dst, a, b in several(dtype):
        left, right = (x.numpy().astype("float64") for x in (a, b))
        for accumulate, where in [(False, None), (True, None), (True, stream)]:
            start = accumulate * dst.numpy().astype("float64")
            shmem.gemm_batched(dst, a, b, accumulate, stream=where)
            stream.synchronize()
            scale = np.abs(start) + np.abs(left) @ np.abs(right)
            error = np.abs(dst.numpy().astype("float64") - (start + left @ right))
            assert (error <= UNITS[dtype] * (left.shape[2] ** 0.5 + 2) * scale + 1e-300).all()


def test_what_does_not_fit_of_many_products(alone):
    dst, a, b = (random((2, *shape), "float32", 1) for shape in ((3, 4), (3, 5), (5, 4)))
    for given, says in [
        ((dst[:1], a, b), r"as many each, not float32 of shape \(1, 3, 4\)"),
        ((dst[0], a[0], b[0]), r"as many each, not float32 of shape \(3, 4\)"),
        ((dst, a, dst), "a is 3 x 5, b 3 x 4, dst 3 x 4"),
        ((dst, a[:, :, ::2], b[:, :3]), "strides of 20 and 8 bytes"),
        ((dst, a[:, :, :0], b[:, :0]), "k is 0, matrices are 48, 60, 80 bytes apart"),
        ((dst, a.view("int32"), b), "float16, bfloat16, float32, float64"),
    ]:
        with pytest.raises(shmem.ArgumentError, match=says):
            shmem.gemm_batched(*given, False)


# --- 8-bit floats with scales


def codes(rows, columns, seed):
    return random((rows, columns), "float8_e4m3fn", seed)


def scales_of(m, n, by_line):
    shapes = ((m, 1), (1, n)) if by_line else ((1,), ())
    made = [np.random.default_rng(k).uniform(0.5, 2, shape) for k, shape in enumerate(shapes)]
    return [shmem.to_device(scale.astype("float32")) for scale in made]


@pytest.mark.parametrize("by_line", [False, True])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_8_bit_floats_with_scales(alone, dtype, by_line):
    stream = shmem.stream()
    for m, k, n in [(3, 32, 48), (1, 16, 16), (70, 64, 16), (0, 16, 16)]:
        a, w, out = codes(m, k, 1), codes(n, k, 2), random((m, n + 16), dtype, 3)
        given = a.numpy(), w.numpy().T, *(scales := scales_of(m, n, by_line))
        left, right = (x.astype("float32") for x in given[:2])
        factor = scales[0].numpy() * scales[1].numpy()
        before, dst = out.numpy(), out[:, 8 : 8 + n]
        for accumulate, where in [(False, None), (True, None), (True, stream)]:
            start = dst.numpy().astype("float32")
            shmem.gemm_scaled(dst, a, w.T, *scales, accumulate, stream=where)
            stream.synchronize()
            wanted = (left @ right) * factor + accumulate * start
            scale = (abs(left) @ abs(right)) * factor + abs(start)
            error = abs(dst.numpy().astype("float32") - wanted)
            assert (error <= UNITS[dtype] * (k**0.5 + 2) * scale).all()
        after = out.numpy()
        before[:, 8 : 8 + n] = after[:, 8 : 8 + n]
        np.testing.assert_array_equal(after, before)


def test_what_cublaslt_does_not_take_of_8_bit_floats(alone):
    m, k, n = 5, 32, 48
    a, b, dst = codes(m, k, 1), codes(n, k, 2).T, random((m, n), "float32", 3)
    one, wide = scales_of(m, n, False), codes(m, k + 16, 4)
    rows = scales_of(m, n, True)
    for given, says in [
        ((dst, a[:, :24], b[:24], *one), "k is 24, n is 48: 8-bit floats .* multiples of 16"),
        ((dst[:, :40], a, b[:, :40], *one), "k is 32, n is 40: 8-bit"),
        ((dst, a[:, :0], b[:0], *one), "k not 0"),
        ((dst, a, codes(k, n, 2), *one), r"b has strides of \(1, 48\) bytes, .* give w.T"),
        ((dst, codes(k, m, 2).T, b, *one), r"a has strides of \(1, 5\) bytes, .* copy it"),
        ((dst, wide[:, 8:40], b, *one), "a begins 8 bytes behind a multiple of 16, .* 48 bytes"),
        ((dst, codes(m, k + 8, 4)[:, :32], b, *one), "a begins 0 bytes .* rows are 40 bytes apart"),
        ((dst, a, b, rows[0], one[1]), r"scale_a has shape \(5, 1\), scale_b \(\); .*\(1, 48\)"),
        ((dst, a, b, *(x.reshape(-1) for x in rows)), r"scale_a has shape \(5,\)"),
        ((dst, a, b[:16], *one), "a is 5 x 32, b 16 x 48, dst 5 x 48"),
        ((dst, a, dst, *one), "b must be an array of float8_e4m3fn, not an array of float32"),
        (
            (random((m, n), "float64", 3), a, b, *one),
            "dst must be an array of float16, bfloat16, f",
        ),
        ((dst, a, b, one[0], dst[:1, :1].view("int32")), "scale_b must be an array of scales of f"),
    ]:
        with pytest.raises(shmem.ArgumentError, match=says):
            shmem.gemm_scaled(*given, False)


def test_8_bit_tensors(alone):
    torch = pytest.importorskip("torch")
    a, w = (torch.randn(16, 32).to(torch.float8_e4m3fn) for _ in range(2))
    out, one = torch.empty(16, 16, dtype=torch.bfloat16), torch.ones(())
    tensors = [shmem.register(x) for x in (out, a, w, one)]
    dst, left, right, scale = tensors
    shmem.gemm_scaled(dst, left, right.T, scale, scale, False)
    torch.testing.assert_close(out, (a.float() @ w.float().T).to(torch.bfloat16))
    for tensor in tensors:
        shmem.unregister(tensor)
