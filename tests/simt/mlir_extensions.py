"""What programs register with numba-cuda-mlir's `extending`, in kernels of either package."""

from hashlib import sha256
from pathlib import Path

import numba.cuda
import numpy as np
import pytest

from gpushmem.artifacts import numba_extensions
from gpushmem.artifacts.compile_errors import KernelTypingError
from gpushmem.artifacts.mlir_aliases import theirs_of, type_twin
from tests.simt.conftest import launch

pytest.importorskip("numba_cuda_mlir")

from numba_cuda_mlir import cuda, extending, types
from numba_cuda_mlir.numba_cuda import extending as older
from numba_cuda_mlir.numba_cuda import types as all_types
from numba_cuda_mlir.numba_cuda.core.errors import NumbaTypeError

TYPING = {"typing_registry": extending.typing_registry}
BOTH = {**TYPING, "lowering_registry": extending.lowering_registry}


def half(x):
    raise NotImplementedError


@extending.overload(half, **TYPING)
def half_of(x):
    if isinstance(x, types.Integer):
        return lambda x: x // 2
    if x == types.float32:
        return lambda x: x * types.float32(0.5)
    if isinstance(x, types.Complex):
        raise NumbaTypeError("half has no meaning for complex numbers")
    return None


@older.overload(half)
def half_of_a_tuple(x):
    n = len(x) if isinstance(x, types.UniTuple) else 0
    return (lambda x: half(x[n - 1])) if n else None


@extending.register_jitable(**TYPING)
def twice(x, more=0):
    return 2 * x + more


@extending.overload_method(types.Array, "last", **TYPING)
def last(a, before=0):
    if isinstance(a.dtype, types.Float) and a.ndim == 1:
        return lambda a, before=0: a[a.size - 1 - before]
    return None


@extending.overload_attribute(types.Array, "rows", inline="always", **BOTH)
def rows(a):
    n = a.ndim
    return lambda a: a.shape[0] * 10 + n


def test_functions_methods_and_attributes():
    def kernel(a, m, out):
        out[0] = half(7) + half(a[1]) + half((1, 2, 8))
        out[1] = twice(a[2]) + twice(half(4), more=1)
        out[2], out[3] = a.last(), a.last(2)
        out[4] = m.rows

    a, m, out = np.arange(8, dtype=np.float32), np.zeros((3, 4), np.int32), np.zeros(5)
    launch(kernel, 1, 1, a, m, out)
    np.testing.assert_array_equal(out, [7.5, 9, 7, 5, 32])


def test_what_they_do_not_take_is_an_error():
    def kernel(z):
        z[0] = half(z[0])

    with pytest.raises(
        KernelTypingError, match=r"(?s)mlir_extensions\.py: Line \d\d.*half has no meaning"
    ):
        launch(kernel, 1, 1, np.zeros(1, np.complex64))
    with pytest.raises(KernelTypingError, match=r"No implementation of function .*half"):
        launch(kernel, 1, 1, np.zeros(1, np.float64))


class Tile:
    def __init__(self, rows, columns):
        self.shape = rows, columns


class TileType(types.Type):
    def __init__(self, shape):
        self.shape = shape
        super().__init__(f"tile of {shape}")


@extending.typeof_impl.register(Tile)
def type_of_tile(tile, context):
    return TileType(tile.shape)


@extending.overload_method(TileType, "place", **TYPING)
def place(tile, row, column):
    if isinstance(row, types.Integer):
        columns = tile.shape[1]
        return lambda tile, row, column: row * columns + column
    return None


def test_constants_of_a_programs_own_types():
    wide, narrow = Tile(4, 100), Tile(4, 10)

    def kernel(out):
        out[0], out[1] = wide.place(2, 3), narrow.place(2, 3)

    out = np.zeros(2, np.int32)
    launch(kernel, 1, 1, out)
    np.testing.assert_array_equal(out, [203, 23])


@extending.intrinsic
def in_mlir(context, x):
    return x(x), lambda builder, target, args, kwargs: None


def typed(x):
    raise NotImplementedError


@extending.type_callable(typed)
def type_typed(context):
    return lambda x: x


@pytest.mark.parametrize("function", [in_mlir, typed])
def test_what_is_written_in_mlir_is_refused_with_what_to_do(function):
    def kernel(out):
        out[0] = function(out[0])

    with pytest.raises(KernelTypingError, match=r"code is MLIR, for GPUs.*extending\.overload"):
        launch(kernel, 1, 1, np.zeros(1))


def test_types_go_there_and_back():
    ours = numba.types.Tuple((numba.types.float32[:, ::1], numba.types.literal(3)))
    theirs = theirs_of(ours)
    assert theirs == all_types.Tuple((types.float32[:, ::1], all_types.literal(3)))
    assert isinstance(theirs[0], types.Array)
    assert type_twin(theirs) == ours
    assert theirs_of(type_twin(cuda.float32x4)) == cuda.float32x4


def test_kernels_are_not_kept_for_other_runs_unless_the_extensions_are_installed(monkeypatch):
    assert numba_extensions.extensions() is None
    monkeypatch.setattr(numba_extensions, "INSTALLED", {Path(__file__).parent.name})
    known = numba_extensions._extensions.__wrapped__(frozenset(numba_extensions._names))
    assert sha256(Path(__file__).read_bytes()).hexdigest() in known
