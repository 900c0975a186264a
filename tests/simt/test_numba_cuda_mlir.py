"""Kernels and programs of numba-cuda-mlir on the engine, alone and beside numba-cuda's."""

import subprocess
import sys

import numba.cuda
import numpy as np
import pytest
from numba.cuda.core.errors import NumbaRuntimeError

from gpushmem.artifacts.compile_errors import KernelTypingError
from gpushmem.artifacts.mlir_aliases import twin, type_twin
from gpushmem.errors import BackendUnavailable
from gpushmem.simt.numba_cuda import patch_numba_cuda
from tests.simt.conftest import launch
from tests.simt.test_fingerprint import fingerprint, made

pytest.importorskip("numba_cuda_mlir")

from numba_cuda_mlir import cuda, types
from numba_cuda_mlir.cuda import float32, literal_unroll, shared
from numba_cuda_mlir.numba_cuda.core.errors import TypingError
from numba_cuda_mlir.numba_cuda.np.numpy_support import from_dtype
from numba_cuda_mlir.numba_cuda.testing import ForeignArray

pytestmark = [
    pytest.mark.filterwarnings("ignore::numba.cuda.core.errors.NumbaPerformanceWarning"),
]


@cuda.jit(device=True)
def square(x):
    return x * x


@numba.cuda.jit(device=True)
def cube(x):
    return x * square(x)


def reverse(x, y):
    i, t = cuda.grid(1), cuda.threadIdx.x
    part = cuda.shared.array(64, types.float32)
    part[t] = square(x[i]) + float32(1) + cube(float32(2))
    cuda.syncthreads()
    y[i] = part[63 - t] + cuda.laneid + numba.cuda.blockIdx.x


def reversed_in_numpy(x):
    parts = (x**2 + 9).reshape(2, 64)[:, ::-1].reshape(128)
    return parts + np.arange(128) % 32 + np.arange(128) // 64


def test_a_kernel_uses_both_packages():
    x, y = np.arange(128, dtype=np.float32), np.zeros(128, np.float32)
    launch(reverse, 2, 64, x, y)
    np.testing.assert_array_equal(y, reversed_in_numpy(x))


def test_what_the_kernels_names_stand_for():
    def kernel(x, z):
        z[0] = cuda.ldca(x, 3)
        cuda.stcg(z, 1, x[1])
        z[2] = cuda.libdevice.sqrtf(x[4]) + cuda.popc(7)
        ours, theirs = cuda.shared_array(4, float32), shared.array(4, cuda.int32)
        ours[0], theirs[0] = 5, 2
        z[3] = ours[0] + theirs[0]
        cuda.atomic.add(z, 4, x[2])
        z[5] = cuda.warpsize

    x, z = np.arange(8, dtype=np.float32), np.zeros(6, np.float32)
    launch(kernel, 1, 1, x, z)
    np.testing.assert_array_equal(z, [3, 1, 5, 7, 2, 32])


def test_names_that_the_compilers_passes_look_for_and_complex_numbers_of_two():
    parts = (1, 2.5, np.float32(4))

    def kernel(z):
        for part in literal_unroll(parts):
            z[0] += np.complex64(part, 2)

    z = np.zeros(1, np.complex128)
    launch(kernel, 1, 1, z)
    assert z[0] == 7.5 + 6j


def test_vectors():
    def kernel(a, out, halves, row):
        v, w = cuda.vector.load(a, 0, 4), cuda.vector.load(a, 4, 4, alignment=8)
        u = v + w * 2 - 1
        u += w
        cuda.vector.store(out, 0, -u)
        cuda.vector.store(out, (4,), abs(w))
        cuda.vector.store(row, (cuda.threadIdx.x, 0), v)
        quotient = cuda.int32x2(1, 2) / 2
        out[8] = quotient.x
        both = cuda.half2(halves[0], halves[1]) + cuda.float16x2(halves[2], halves[3])
        halves[0], halves[1] = both.x, both.y

    a, out = np.arange(8, dtype=np.float32), np.zeros(9, np.float32)
    halves = np.arange(4, dtype=np.float16)
    row = np.zeros((1, 4), np.float32)
    launch(kernel, 1, 1, a, out, halves, row)
    np.testing.assert_array_equal(row, [a[:4]])
    np.testing.assert_array_equal(out, [-11, -15, -19, -23, 4, 5, 6, 7, 0.5])
    np.testing.assert_array_equal(halves, [2, 4, 2, 3])


def test_vectors_as_elements_and_of_several_dimensions():
    def kernel(a, square, out):
        part = cuda.shared.array(2, dtype=cuda.float32x4)
        part[0] = cuda.vector.load(square, 1, 4)
        part[1] = cuda.float32x4(cuda.vector.load(square, (1, 1), (2, 2)))
        views = a.view(cuda.float32x4)
        views[1] = part[0] + part[1]
        out.view(cuda.float64x2)[1] = cuda.float64x2(7)
        block = cuda.vector.load(square, (0, 1), (3, 2))
        cuda.vector.store(square, (0, 0), block)
        out[0] = part[1].z

    a, out, square = np.zeros(8, np.float32), np.zeros(4), np.arange(9, dtype=np.float32)
    square, before = square.reshape(3, 3), square.reshape(3, 3).copy()
    launch(kernel, 1, 1, a, square, out)
    np.testing.assert_array_equal(a, [0, 0, 0, 0, 1 + 4, 2 + 5, 3 + 7, 4 + 8])
    np.testing.assert_array_equal(out, [7, 0, 7, 7])
    np.testing.assert_array_equal(square, before[:, [1, 2, 2]])


def test_vectors_of_two_are_complex_numbers():
    def kernel(z, w):
        pair = cuda.shared.array(1, dtype=cuda.float64x2)
        pair[0] = z[0]
        w[0] = complex(pair[0]) * 2
        v = cuda.float32x2(np.complex64(cuda.half2(1, 2)))
        w[1], w[2] = v, np.complex128(cuda.int2(3, 4))

    z, w = np.array([1 + 2j]), np.zeros(3, np.complex128)
    launch(kernel, 1, 1, z, w)
    np.testing.assert_array_equal(w, [2 + 4j, 1 + 2j, 3 + 4j])


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda x: cuda.float32x4(1, x[0]).y, "float32x4 has 4 elements, and is given 2"),
        (lambda x: cuda.float32x4("a").y, "made of numbers and vectors"),
        (lambda x: cuda.vector.load(x, 0, 17).x, "at most 16"),
        (lambda x: cuda.vector.load(x, (0, 0), 2).x, "index has 2 numbers, and the arr"),
        (lambda x: (cuda.float2(1) * cuda.float2(x[0])).x, "cannot call mul"),
    ],
)
def test_vectors_that_cannot_be_made(make, said):
    function = numba.cuda.jit(device=True)(make)

    def kernel(x):
        x[0] = function(x)

    with pytest.raises(KernelTypingError, match=said):
        launch(kernel, 1, 1, np.zeros(1, np.float32))


def test_a_name_without_a_meaning_is_refused_with_what_to_do():
    def kernel(x):
        cuda.inline_ptx("nanosleep.u32 1;")

    with pytest.raises(
        KernelTypingError, match=r"inline_ptx has no meaning on the CPU.* write the"
    ):
        launch(kernel, 1, 1, np.zeros(1))


def test_types_and_their_structures_are_numba_cudas():
    record = np.dtype([("a", "i4"), ("b", "f8", (2,))])
    theirs = types.void(types.float32[:, ::1], types.UniTuple(types.int64, 3))
    ours = numba.types.void(numba.types.float32[:, ::1], numba.types.UniTuple(numba.types.int64, 3))
    assert type_twin(theirs) == ours
    assert twin(types.int32) is numba.types.int32
    assert type_twin(from_dtype(record)) == numba.from_dtype(record)


TEXT = "def kernel(a):\n    a[cuda.grid(1)] = f(a[0]) + kind(cuda.laneid)"


def test_equal_meanings_have_equal_keys_and_others_do_not():
    def key(package, function, kind):
        known = {"cuda": package, "f": package.jit(device=True)(function), "kind": kind}
        return fingerprint(made(TEXT, **known))

    def other(x):
        return x + x

    theirs = key(cuda, square.py_func, cuda.int32)
    assert theirs is not None
    assert theirs == key(cuda, square.py_func, types.int32)
    assert theirs != key(cuda, other, cuda.int32)
    assert theirs != key(cuda, square.py_func, cuda.int64)


def test_a_program_imported_before_the_patch():
    with patch_numba_cuda():
        before, after = cuda.event(), cuda.event()
        stream = cuda.stream()
        x = np.arange(128, dtype=np.float32)
        there, back = cuda.to_device(x, stream=stream), cuda.device_array(128, np.float32)
        before.record(stream)
        cuda.jit(reverse)[2, 64, stream, 0, (2, 1, 1)](there, back)
        after.record(stream)
        stream.synchronize()
        np.testing.assert_array_equal(back.copy_to_host(), reversed_in_numpy(x))
        assert cuda.event_elapsed_time(before, after) > 0
        assert cuda.is_available()
        assert len(cuda.gpus) == 1

        for signature in ("void(float32[:])", types.void(types.float32[:])):

            @cuda.jit(signature)
            def one_more(x):
                x[cuda.grid(1)] += 1

            one_more[1, 128](back)
        np.testing.assert_array_equal(back.copy_to_host(), reversed_in_numpy(x) + 2)

        @cuda.jit
        def wrong(x: types.float32[:]):
            x[0] += 1

        assert wrong.signatures == [(numba.types.float32[:],)]
        assert wrong.overloads[types.float32[:],] in wrong.overloads.values()
        captured = ForeignArray(cuda.to_device(np.arange(3.0)))

        @cuda.jit
        def capture(out):
            out[0] = captured[2] + declared(1.0)

        declared = cuda.declare_device("one_of_c", types.float64(types.float64))
        with pytest.raises(
            BackendUnavailable, match="calls one_of_c, which the CPU engine does not have"
        ):
            capture[1, 1](back)
        with pytest.raises(TypingError, match="__setitem__"):
            cuda.jit(lambda x: x.__setitem__(0, "a"))[1, 1](back)
        with pytest.raises(ValueError, match=r"\(3, 1, 1\) blocks .* clusters of \(2, 1, 1\)"):
            wrong[3, 1, None, None, (2, 1, 1)]
        with pytest.raises(TypeError, match=r"wrong has the signature void\(float32\) and the"):
            cuda.jit("void(float32)")(wrong.py_func)
    assert cuda.jit.__module__.startswith("numba_cuda_mlir")


def test_what_it_allows_in_kernels_and_numba_cuda_does_not():
    with patch_numba_cuda():

        @cuda.jit
        def whole(a, b, out):
            x = a * b + 1
            for i in range(x.size):
                out[i] = x[i]

        a, b, out = np.arange(3), np.full(3, 0.5, np.float32), np.zeros(3)
        whole[1, 1](a, b, out)
        np.testing.assert_array_equal(out, a * b + 1)
        with pytest.raises(NumbaRuntimeError, match="NRT required"):
            numba.cuda.jit(whole.py_func)[1, 1](a, b, out)

        @cuda.jit
        def large(out):
            one, rest = cuda.shared.array(1, types.int32), cuda.shared.array(0, types.uint8)
            one[0] = rest.size
            out[0] = one[0]

        class Doubled:
            def prepare_args(self, ty, val, stream=None, retr=None):
                return (types.float64, 2 * val) if isinstance(ty, types.Float) else (ty, val)

        @cuda.jit(extensions=[Doubled()])
        def store(out, value):
            out[0] = value

        store[1, 1](out, 1.5)
        assert out[0] == 3
        assert store.get_regs_per_thread()[types.float64[::1], types.float64] > 0

        large[1, 1, 0, 100_000](out)
        assert out[0] == 100_000
        with pytest.raises(numba.cuda.cudadrv.driver.CudaAPIError, match="NOT_SUPPORTED: a module"):
            numba.cuda.current_context().create_module_ptx(".version 8.0")


PROGRAM = """
import sys
from gpushmem.simt.numba_cuda import patch_numba_cuda
with patch_numba_cuda():
    import numpy as np, numba.cuda

    @numba.cuda.jit
    def first(x):
        x[0] += 1

    x = np.zeros(1)
    first[1, 1](x)
    assert not [name for name in sys.modules if name.startswith("numba_cuda_mlir")]
    from numba_cuda_mlir import cuda
    from numba_cuda_mlir.cuda.random import create_xoroshiro128p_states
    from numba_cuda_mlir.cuda.random import xoroshiro128p_uniform_float64 as uniform

    @cuda.jit
    def second(states, x):
        x[0] += uniform(states, 0)

    second[1, 1](create_xoroshiro128p_states(1, seed=1), x)
    assert 1 < x[0] < 2, x
"""


def test_a_program_that_imports_it_inside_the_patch():
    subprocess.run([sys.executable, "-W", "ignore", "-c", PROGRAM], check=True, timeout=120)
