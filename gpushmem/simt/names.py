"""The `numba.cuda` names a kernel may use, each bound to its meaning on this target."""

from __future__ import annotations

import math
from typing import Any

from llvmlite import ir
from numba import cuda, types
from numba.core import cgutils
from numba.core.errors import NumbaTypeError, RequireLiteralValue
from numba.core.typing.npydecl import parse_dtype
from numba.core.typing.templates import AttributeTemplate
from numba.cuda.dispatcher import CUDADispatcher
from numba.np.arrayobj import populate_array

from gpushmem.simt.native import i64, intrinsic
from gpushmem.simt.primitives import (
    arrive,
    block_group,
    place,
    place_dynamic,
    release,
    text_word,
    thread_field,
)
from gpushmem.simt.target import KernelName, adopt, bind, device, lowerings, typings

__all__ = ["AXES"]

AXES = ("x", "y", "z")


# --- cuda.threadIdx.x and its kin


class Dim3(KernelName):
    """`cuda.threadIdx`, `blockIdx`, `blockDim`, `gridDim`: a field of THREAD."""

    def __init__(self, field: str) -> None:
        super().__init__(f"dim3({field})")
        self.field = field


@typings.register_attr
class Dim3Attributes(AttributeTemplate):
    key = Dim3

    def generic_resolve(self, typ: Dim3, attr: str) -> Any:
        return types.int32 if attr in AXES else None


@lowerings.lower_getattr_generic(Dim3)
def dim3_getattr(context: Any, builder: Any, typ: Dim3, value: Any, attr: str) -> Any:
    return thread_field(builder, typ.field, AXES.index(attr))


for _name, _field in [
    ("threadIdx", "tid"), ("blockIdx", "bid"), ("blockDim", "bdim"), ("gridDim", "gdim"),
]:  # fmt: skip
    bind(getattr(cuda, _name), Dim3(_field))


# --- cuda.shared, cuda.local, cuda.atomic: names with names inside


class Namespace(KernelName):
    """A class of `numba.cuda.stubs` that only holds other names."""

    def __init__(self, stub: Any) -> None:
        super().__init__(f"cuda.{stub.__name__}")
        self.stub = stub


@typings.register_attr
class NamespaceAttributes(AttributeTemplate):
    key = Namespace

    def generic_resolve(self, typ: Namespace, attr: str) -> Any:
        value = getattr(typ.stub, attr, None)
        return None if value is None else self.context.resolve_value_type(value)


@lowerings.lower_getattr_generic(Namespace)
def namespace_getattr(context: Any, builder: Any, typ: Namespace, value: Any, attr: str) -> Any:
    return context.get_dummy_value()


for _stub in (cuda.shared, cuda.local, cuda.atomic):
    bind(_stub, Namespace(_stub))


# --- grid and gridsize


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


bind(cuda.grid, _per_axis(_position))
bind(cuda.gridsize, _per_axis(_extent))


# --- barriers


@device
def syncthreads():
    group = block_group()
    if arrive(group, text_word("syncthreads")):
        release(group)


bind(cuda.syncthreads, syncthreads)


# --- arrays in shared and local memory


def _extents(shape: Any) -> tuple[int, ...]:
    parts = shape if isinstance(shape, types.BaseTuple) else [shape]
    if not all(isinstance(p, types.IntegerLiteral) for p in parts):
        raise RequireLiteralValue(
            f"shape must be an integer constant or a tuple of them, not {shape}"
        )
    return tuple(p.literal_value for p in parts)


def _array_of(kind: str) -> Any:
    """Make `cuda.shared.array` or `cuda.local.array`."""

    @intrinsic(prefer_literal=True)
    def array(typingctx: Any, shape: Any, dtype: Any) -> Any:
        extents, element = _extents(shape), parse_dtype(dtype)
        if element is None:
            raise NumbaTypeError(f"cuda.{kind}.array: {dtype} is not a dtype")
        dynamic = kind == "shared" and extents == (0,)
        result = types.Array(element, len(extents), "C")

        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            itemsize = context.get_abi_sizeof(context.get_data_type(element))
            if dynamic:
                data = place_dynamic(builder)
                room = thread_field(builder, "dynamic_shared")
                lengths = [builder.udiv(room, i64(itemsize))]
            else:
                data = place(builder, kind, math.prod(extents) * itemsize, 16)
                lengths = [i64(n) for n in extents]
            return _make_array(context, builder, result, data, lengths, itemsize)

        return result(shape, dtype), codegen

    return array


def _make_array(
    context: Any, builder: Any, typ: Any, data: Any, lengths: Any, itemsize: int
) -> Any:
    array = context.make_array(typ)(context, builder)
    strides: list[ir.Value] = []
    step = i64(itemsize)
    for n in reversed(lengths):
        strides.insert(0, step)
        step = builder.mul(step, n)
    populate_array(
        array, data=builder.bitcast(data, array.data.type), shape=lengths, strides=strides,
        itemsize=i64(itemsize), meminfo=None,
    )  # fmt: skip
    return array._getvalue()


bind(cuda.shared.array, _array_of("shared"))
bind(cuda.local.array, _array_of("local"))


# --- atomics


@intrinsic
def atomic_add(typingctx: Any, ary: Any, idx: Any, val: Any) -> Any:
    """`ary[idx] += val` as one step, returning the old value; relaxed, as CUDA's is."""
    if not isinstance(ary, types.Array) or not isinstance(ary.dtype, types.Integer | types.Float):
        raise NumbaTypeError(f"cuda.atomic.add needs an array of integers or floats, not {ary}")
    op = "add" if isinstance(ary.dtype, types.Integer) else "fadd"
    index_types = idx.types if isinstance(idx, types.BaseTuple) else (idx,)
    if len(index_types) != ary.ndim or not all(isinstance(t, types.Integer) for t in index_types):
        raise NumbaTypeError(f"cuda.atomic.add: {idx} does not index one element of {ary}")

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        array, index, value = args
        parts = (
            cgutils.unpack_tuple(builder, index) if isinstance(idx, types.BaseTuple) else [index]
        )
        wide = [
            context.cast(builder, i, t, types.intp) for i, t in zip(parts, index_types, strict=True)
        ]
        helper = context.make_array(ary)(context, builder, array)
        pointer = cgutils.get_item_pointer(context, builder, ary, helper, wide, wraparound=True)
        return builder.atomic_rmw(op, pointer, value, "monotonic")

    return ary.dtype(ary, idx, ary.dtype), codegen


bind(cuda.atomic.add, atomic_add)


# --- device functions

adopt(CUDADispatcher, lambda dispatcher: dispatcher.py_func)
