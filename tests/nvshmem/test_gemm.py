"""`gemm_block` on GPUs: the plain product, here on the CPU, and its machine code; cuBLASDx's."""

import re

import numpy as np
import pytest

pytest.importorskip("nvshmem")

from numba import cuda
from numba.core.errors import NumbaError
from numba.cuda import types

import gpushmem as shmem
from gpushmem import code_store
from gpushmem.backends.codegen import dtype_name
from gpushmem.backends.nvshmem import versions
from gpushmem.backends.nvshmem.compile import compiler
from gpushmem.backends.nvshmem.operations import gemm, mathdx

BYTES = gemm.BYTES
DTYPES = ("float16", "bfloat16", "float32", "float64")
ARCHS = ("sm_80", "sm_90", "sm_100")
# Of one product, as a part of the sum of its terms' sizes: the roundings of what is summed, and for
# float16 the one to float16 at the end.
TOLERANCE = {"float16": 2**-10, "bfloat16": 2**-7, "float32": 2**-21, "float64": 2**-50}
SIZES = [(1, 1, 1), (70, 65, 33), (64, 64, 64), (5, 130, 40), (0, 3, 2), (3, 0, 2), (3, 2, 0)]
CUBLASDX = pytest.mark.skipif(
    not any(map(versions.installed, versions.MATHDX)), reason="libmathdx is not installed"
)


def matrix(dtype):
    return types.Array(getattr(types, dtype), 2, "A")


# --- the plain product, run by the cpu backend


def for_cpu(dtype):
    """A product of its own: numba-cuda compiles a device function for one target only."""
    return gemm.product.__wrapped__(getattr(types, dtype))


@pytest.fixture(scope="module", params=DTYPES)
def plain(request):
    """The dtype, and a kernel that multiplies matrices of it."""
    multiply = for_cpu(request.param)

    @shmem.jit
    def kernel(dst, a, b, accumulate):
        multiply(dst, a, b, accumulate, cuda.shared.array(BYTES, types.uint8, 16))

    return request.param, kernel


def numbers(rng, dtype, rows, columns, transposed):
    shape = (columns, rows) if transposed else (rows, columns)
    made = rng.standard_normal(shape).astype(dtype)
    return made.T if transposed else made


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("block", [1, 32, 100, (8, 4, 4)], ids=str)
def test_the_plain_product_is_that_of_numpy(plain, block):
    dtype, kernel = plain
    rng = np.random.default_rng(7)
    for m, n, k in SIZES:
        for transposed in (False, True):
            a = numbers(rng, dtype, m, k, transposed)
            b = numbers(rng, dtype, k, n, transposed)
            for accumulate in (False, True):
                around = rng.standard_normal((m + 2, n + 3)).astype(dtype)
                dst = around[1:-1, 1:-2]
                before, outside = dst.astype("float64"), around.copy()
                kernel[1, block](dst, a, b, accumulate)
                check(dst, before if accumulate else 0 * before, a, b)
                outside[1:-1, 1:-2] = dst
                np.testing.assert_array_equal(around, outside)


def check(dst, before, a, b):
    a, b = (x.astype("float64") for x in (a, b))
    allowed = TOLERANCE[str(dst.dtype)] * (abs(before) + abs(a) @ abs(b))
    assert (abs(dst - (before + a @ b)) <= allowed).all()


@pytest.mark.usefixtures("alone")
def test_one_product_after_the_other(plain):
    """The second finds in shared memory what the first has left, and needs what it has written."""
    dtype, multiply = plain[0], for_cpu(plain[0])

    @shmem.jit
    def twice(first, second, a, b):
        memory = cuda.shared.array(BYTES, types.uint8, 16)
        multiply(first, a, b, False, memory)
        multiply(second, first, b, False, memory)

    rng = np.random.default_rng(8)
    a, b = (rng.integers(-1, 2, (33, 33)).astype(dtype) for _ in range(2))
    first, second = np.full_like(a, 99), np.full_like(a, 99)
    twice[1, 64](first, second, a, b)
    np.testing.assert_array_equal(
        second, ((a.astype(int) @ b.astype(int)) @ b.astype(int)).astype(dtype)
    )


# --- machine code


def product_alone(dtype, library):
    multiply = gemm.product(getattr(types, dtype), library)

    def kernel(dst, a, b, accumulate):
        multiply(dst, a, b, accumulate, gemm.shared_bytes())

    return kernel


def compiled(function, dtypes, arch="sm_90"):
    argtypes = (*map(matrix, dtypes), types.boolean)
    return compiler.compile_kernel(function, argtypes, {}, compiler.Arch.of(arch))


KINDS = [
    pytest.param(arch, kind, marks=[pytest.mark.sweep] if slow else [], id=f"{arch}-{kind}")
    for arch, kind, slow in [
        ("sm_90", "cubin", False), ("sm_80", "ptx", False), ("sm_100", "ptx", False),
        ("sm_80", "cubin", True), ("sm_100", "cubin", True),
    ]
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("arch", "kind"), KINDS)
def test_the_plain_product_links(dtype, arch, kind):
    linked = compiler.link(compiled(product_alone(dtype, False), [dtype] * 3, arch), kind)
    if kind == "ptx":
        assert b".entry" in linked.code
    else:
        assert " 0 bytes stack frame, 0 bytes spill stores" in linked.log
        assert linked.log.count("Function properties") == 1  # all inlined
        assert int(re.search(r"(\d+) bytes smem", linked.log)[1]) < 28 * 1024


def multiplies(dst, a, b, accumulate):
    shmem.gemm_block(dst, a, b, accumulate)


@pytest.mark.parametrize(
    ("dtypes", "said"),
    [
        (("float32", "float32", "float64"), "gemm_block: dst is an array of float32, b of float64"),
        (("float32", "float16", "float32"), "gemm_block: dst is an array of float32, a of float16"),
        (
            ("int32", "int32", "int32"),
            "dst must be an array of float16, bfloat16, float32, float64, not an array of int32",
        ),
    ],
)
def test_other_dtypes_are_refused(dtypes, said):
    with pytest.raises(NumbaError) as error:
        compiled(multiplies, dtypes)
    assert said in str(error.value)


def test_vectors_are_refused():
    argtypes = (types.float32[::1], *[matrix("float32")] * 2, types.boolean)
    with pytest.raises(NumbaError, match="gemm_block: dst must be an array of 2 axes"):
        compiler.compile_kernel(multiplies, argtypes, {}, compiler.Arch.of("sm_90"))


def test_all_products_of_a_kernel_share_their_memory():
    """Of any dtype and layout, for each of which Numba compiles anew: 48 KB are for all."""
    first, second, third = (gemm.product(getattr(types, dtype)) for dtype in DTYPES)
    memory = gemm.shared_bytes

    @cuda.jit(device=True)
    def elsewhere(floats):
        second(floats, floats, floats, False, memory())

    def kernel(halves, floats, by_columns, doubles):
        first(halves, halves, halves, False, memory())
        second(floats, floats, floats, False, memory())
        second(floats, by_columns, floats, False, memory())
        third(doubles, doubles, doubles, False, memory())
        elsewhere(floats)

    f32 = types.Array(types.float32, 2, "C"), types.Array(types.float32, 2, "F")
    argtypes = (matrix("float16"), *f32, matrix("float64"))
    arch = compiler.Arch.of("sm_90")
    linked = compiler.link(compiler.compile_kernel(kernel, argtypes, {}, arch))
    assert int(re.search(r"(\d+) bytes smem", linked.log)[1]) < 28 * 1024
    assert linked.log.count("0 bytes stack frame") == linked.log.count("Function properties")


def test_kernels_with_products_are_linked_together():
    made = [compiled(product_alone(dtype, False), [dtype] * 3) for dtype in DTYPES]
    assert compiler.link_all(made).log.count("27136 bytes smem") == 3


# --- cuBLASDx


@pytest.fixture
def wanted(monkeypatch):
    monkeypatch.setenv("GPUSHMEM_CUBLASDX", "1")


def test_it_can_be_left_out(monkeypatch):
    monkeypatch.setattr(versions, "installed", lambda name: "0.3.2")
    monkeypatch.setenv("GPUSHMEM_CUBLASDX", "0")
    assert not mathdx.has((9, 0))


@pytest.mark.parametrize("there", [False, True])
def test_kernels_call_cublasdx_where_it_is(monkeypatch, wanted, there):
    """Only where it is installed, and for the architectures it has; the linker does the rest."""
    monkeypatch.setattr(versions, "installed", lambda name: "0.3.2" if there else None)
    assert mathdx.has((9, 0)) == mathdx.has((10, 3, "a")) == there
    assert not mathdx.has((13, 7))
    assert not mathdx.has(None)
    of_float64 = compiled(product_alone("float64", mathdx.has((9, 0))), ["float64"] * 3)
    assert of_float64.products == ({"float64"} if there else set())


def test_what_is_installed_is_part_of_every_kernels_key():
    assert {name for name, _ in versions.compilers()} >= set(versions.MATHDX)


def test_tiles_suit_cublasdx():
    for dtype, tile in gemm.TILES.items():
        itemsizes = [dtype.bitwidth // 8, dtype.bitwidth // 8, np.dtype(tile.number).itemsize]
        for lead, itemsize in zip(tile.leads, itemsizes, strict=True):
            assert lead * itemsize % mathdx.ALIGNMENT == 0
    assert [dtype_name(dtype) for dtype in gemm.TILES] == list(DTYPES) == list(mathdx.PRECISIONS)


# What multiplies: `mma` are tensor cores, which have float32 only with fewer digits.
INSTRUCTIONS = {
    "float16": "mma.sync.aligned.m16n8k", "bfloat16": "mma.sync.aligned.m16n8k",
    "float32": "fma.rn.f32", "float64": "mma.sync.aligned.m8n8k4",
}  # fmt: skip


@CUBLASDX
@pytest.mark.sweep  # half a minute and 2 GB each: what libmathdx compiles is large
@pytest.mark.timeout(600)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("arch", ARCHS)
def test_cublasdx_is_linked(wanted, dtype, arch):
    made = compiled(multiplies, [dtype] * 3, arch)
    assert made.products == {dtype}
    ptx = compiler.link(made, "ptx").code.decode(errors="replace")
    assert INSTRUCTIONS[dtype] in ptx
    linked = compiler.link(made)
    assert "0 bytes stack frame, 0 bytes spill stores" in linked.log


@CUBLASDX
@pytest.mark.sweep
@pytest.mark.timeout(600)
def test_two_dtypes_in_one_kernel(wanted):
    def both(dst, a, b, accumulate, wide):
        shmem.gemm_block(dst, a, b, accumulate)
        shmem.gemm_block(wide, wide, wide, accumulate)

    argtypes = (*[matrix("float32")] * 3, types.boolean, matrix("float64"))
    made = compiler.compile_kernel(both, argtypes, {}, compiler.Arch.of("sm_90"))
    assert made.products == {"float32", "float64"}
    assert compiler.link(made).code[:4] == b"\x7fELF"


def test_products_are_kept_apart_from_the_source(tmp_path, monkeypatch):
    """Half a minute: not once more for each change of this package."""
    monkeypatch.setenv("GPUSHMEM_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(code_store, "_objects", {})
    asked = []
    monkeypatch.setattr(mathdx, "_make", lambda product, arch: asked.append(product) or b"code")
    monkeypatch.setattr(versions, "compilers", lambda: pytest.fail("has the source's digest"))
    assert gemm.compiled("float16", "sm_90") == gemm.compiled("float16", "sm_90") == b"code"
    gemm.compiled("float32", "sm_90")
    gemm.compiled("float32", "sm_80")
    assert [(p.dtype, p.sums) for p in asked] == [
        ("float16", "float32"), ("float32", "float32"), ("float32", "float32"),
    ]  # fmt: skip
