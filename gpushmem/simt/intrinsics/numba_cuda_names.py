"""Names of `numba.cuda` that are bound to code of their own, instead of an intrinsic."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import cuda
from numba.core import cgutils
from numba.cuda import types
from numba.cuda.core.errors import NumbaTypeError, RequireLiteralValue

from gpushmem.native.memory import i64, intrinsic
from gpushmem.simt.compiler.primitives import thread_field
from gpushmem.simt.compiler.target import bind
from gpushmem.simt.intrinsics import atomics as _atomics  # noqa: F401  (they fill INTRINSICS)
from gpushmem.simt.intrinsics import cuda_shims as _shims  # noqa: F401
from gpushmem.simt.intrinsics import libdevice as _libdevice  # noqa: F401
from gpushmem.simt.intrinsics import mlir as _mlir  # noqa: F401
from gpushmem.simt.intrinsics import nrt as _nrt  # noqa: F401
from gpushmem.simt.intrinsics import nvvm as _machine  # noqa: F401

__all__ = ["grid", "gridsize"]


# --- grid and gridsize: as numba-cuda's, but marked as not overflowing, so that loops vectorise


def _per_axis(of_axis: Any) -> Any:
    """Make `f(ndim)`: an int64 for ndim 1, else a tuple; `of_axis(builder, axis)` gives one."""

    @intrinsic(prefer_literal=True)
    def function(typingctx: Any, ndim: Any) -> Any:
        if not isinstance(ndim, types.IntegerLiteral):
            raise RequireLiteralValue("ndim must be a literal: 1, 2 or 3")
        n = ndim.literal_value
        if n not in (1, 2, 3):
            raise NumbaTypeError(f"ndim must be 1, 2 or 3, not {n}")

        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            values = [of_axis(builder, axis) for axis in range(n)]
            return values[0] if n == 1 else cgutils.pack_array(builder, values)

        return (types.int64 if n == 1 else types.UniTuple(types.int64, n))(ndim), codegen

    return function


def _wide(builder: ir.IRBuilder, field: str, axis: int) -> ir.Value:
    return builder.zext(thread_field(builder, field, axis), i64)


def _position(builder: ir.IRBuilder, axis: int) -> ir.Value:
    exact = ("nuw", "nsw")
    base = builder.mul(_wide(builder, "bid", axis), _wide(builder, "bdim", axis), flags=exact)
    return builder.add(base, _wide(builder, "tid", axis), flags=exact)


def _extent(builder: ir.IRBuilder, axis: int) -> ir.Value:
    return builder.mul(
        _wide(builder, "gdim", axis), _wide(builder, "bdim", axis), flags=("nuw", "nsw")
    )


grid, gridsize = _per_axis(_position), _per_axis(_extent)
bind(cuda.grid, grid)
bind(cuda.gridsize, gridsize)
