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
