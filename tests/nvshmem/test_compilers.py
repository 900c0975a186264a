"""Which compiler a kernel has, the kernel for the other one, and the parameters of a launch."""

import numpy as np
import pytest

pytest.importorskip("nvshmem")
pytest.importorskip("numba_cuda_mlir")

import numba.cuda
import numba_cuda_mlir.cuda
from numba import types

import gpushmem as shmem
from gpushmem.artifacts import compiler_choice, fingerprint, mlir_aliases
from gpushmem.artifacts.argument_packing import pack, parameters, words_of
from gpushmem.artifacts.compile_errors import KernelTypingError
from gpushmem.backends.nvshmem import versions
from gpushmem.backends.nvshmem.compile import aot, compiler
from gpushmem.backends.nvshmem.compile.options import compiler_of
from gpushmem.errors import ArgumentError

SM_90 = compiler.Arch.of("sm_90")
F32 = types.float32[::1]
MODULES = {"numba-cuda": numba.cuda, "numba-cuda-mlir": numba_cuda_mlir.cuda}


def kernel(cuda):
    @cuda.jit(device=True)
    def double(x):
        return 2 * x

    def fill(dst, src, pe):
        i = cuda.grid(1)
        if i == 0:
            src[0] = double(src[1])
            shmem.put(dst, src, pe)

    return fill


def plain(dst, src, pe):
    shmem.put(dst, src, pe)


@pytest.mark.parametrize("which", MODULES)
def test_a_kernel_has_the_compiler_it_was_written_for_unless_one_is_set(which, monkeypatch):
    monkeypatch.delenv("GPUSHMEM_COMPILER", raising=False)
    assert compiler_of(kernel(MODULES[which])) == which
    assert compiler_of(plain) == "numba-cuda"
    monkeypatch.setenv("GPUSHMEM_COMPILER", "numba-cuda-mlir")
    assert compiler_of(kernel(MODULES[which])) == "numba-cuda-mlir"


def test_a_kernel_is_translated_with_its_device_functions():
    written = kernel(numba.cuda)
    assert compiler_choice.translated(written, "numba-cuda") is written
    other = compiler_choice.translated(written, "numba-cuda-mlir")
    named = compiler_choice.mentioned(other)
    assert named["cuda"] is numba_cuda_mlir.cuda
    assert named["shmem"] is shmem
    assert mlir_aliases.is_theirs(named["double"])
    assert compiler_choice.written_for(other) == "numba-cuda-mlir"
    assert compiler_choice.translated(plain, "numba-cuda-mlir") is plain


def test_both_make_code_and_keep_it_under_different_names(monkeypatch):
    argtypes = F32, F32, types.int64
    asked = []
    monkeypatch.setattr(fingerprint, "fingerprint", lambda *given: asked.append(given[3]) or None)
    monkeypatch.setattr(aot, "_compile", lambda *given: aot.Artifact({"compiler": given[-1]}, b""))
    for which, module in MODULES.items():
        found = aot.artifact(kernel(module), argtypes, {}, "sm_90")
        assert found.about["compiler"] == which == asked[-1][0]


def test_kernels_of_numba_cuda_mlir_have_a_fingerprint():
    a, b = (fingerprint.fingerprint(kernel(numba_cuda_mlir.cuda), (F32,), {}, ()) for _ in "ab")
    assert a is not None
    assert a == b
    assert a != fingerprint.fingerprint(kernel(numba.cuda), (F32,), {}, ())


def test_parameters():
    """As the code of numba-cuda-mlir declares them: see bench/gpu/compilers.py."""
    array = np.zeros((5, 10), np.float32)[:, 1:7:2]
    at = array.ctypes.data
    argtypes = (
        types.Array(types.float32, 2, "A"), types.none, types.Tuple((types.int32, types.boolean)),
        types.complex64, types.complex128,
    )  # fmt: skip
    given = array, None, (-3, True), 1 + 2j, 3 - 4j
    pair = int(np.complex64(1 + 2j).view(np.int64))
    assert parameters(argtypes, given) == [at, at, 0, 5, 3, 10, 2, -3, 1, pair, 3 - 4j]
    assert len(words_of(pack(argtypes, given))) == 9 + 1 + 2 + 2 + 2
    records = np.zeros(4, [("a", "f4"), ("b", "f8")])["b"]
    with pytest.raises(
        ArgumentError, match=r"strides of \(12,\) bytes and elements of 8 .* copy it"
    ):
        parameters((types.Array(types.float64, 1, "A"),), (records,))


def test_complex_numbers_are_arguments_and_results_of_operations():
    def swap(x, value, pe):
        x[0] = shmem.g(x, pe)
        shmem.p(x, value, pe)

    argtypes = types.complex128[::1], types.complex128, types.int64
    made = compiler.compile_kernel(swap, argtypes, {}, SM_90, False, "numba-cuda-mlir")
    assert made.shims >= {"_Z16nvshmem_uint64_p_nbst", "_Z16nvshmem_uint64_g_nbst"}


def test_device_functions_of_jit_are_called():
    @shmem.jit(device=True)
    def add(x, value):
        x[0] += value

    def calls(x):
        add(x, 2)

    made = compiler.compile_kernel(calls, (F32,), {}, SM_90, False, "numba-cuda-mlir")
    assert made.parts


def test_what_numba_cuda_mlir_is_not_used_for_is_said(monkeypatch):
    def many(array, team):
        shmem.multicast_array(array, team)

    def vector(array, team):
        shmem.store_vector(array, 0, (team, team))

    def compiled(function, argtypes, options, traced=False):
        compiler.compile_kernel(function, argtypes, options, SM_90, traced, "numba-cuda-mlir")

    cure = r"GPUSHMEM_COMPILER=numba-cuda$"
    with pytest.raises(KernelTypingError, match=r"^multicast_array cannot be called in kernels of"):
        compiled(many, (F32, types.int64), {})
    with pytest.raises(KernelTypingError, match=r"^store_vector cannot be called in kernels of"):
        compiled(vector, (F32, types.int64), {})
    with pytest.raises(
        KernelTypingError, match=r"^put: src must be an array, not int64; of an element, .*\n"
    ):
        compiled(plain, (F32, types.int64, types.int64), {})
    with pytest.raises(ArgumentError, match=rf"plain: debug=True is not available .* {cure}"):
        compiled(plain, (F32, F32, types.int64), {"debug": True})
    with pytest.raises(ArgumentError, match=rf"kernel plain: traced is not available .* {cure}"):
        compiled(plain, (F32, F32, types.int64), {}, traced=True)
    monkeypatch.setattr(versions, "installed", lambda name: "0.7.1")
    with pytest.raises(
        ArgumentError, match=r"0\.7\.1 is installed; .* numba-cuda-mlir>=0\.6,<0\.7"
    ):
        compiled(plain, (F32, F32, types.int64), {})
