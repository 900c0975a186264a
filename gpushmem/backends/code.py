"""Arrays that code generators make, on every backend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba.cuda import types
from numba.cuda.np.arrayobj import populate_array

__all__ = ["array_moved", "contiguous"]


def contiguous(context: Any, builder: Any, typ: Any, start: Any, extents: Sequence[Any]) -> Any:
    """The code of an array of type `typ`, row by row, that begins at an address or a pointer."""
    array = context.make_array(typ)(context, builder)
    of_number = isinstance(start.type, ir.IntType)
    data = (builder.inttoptr if of_number else builder.bitcast)(start, array.data.type)
    itemsize = context.get_abi_sizeof(context.get_data_type(typ.dtype))
    size = context.get_constant(types.intp, itemsize)
    strides = [size]
    for extent in reversed(extents[1:]):
        strides.insert(0, builder.mul(strides[0], extent))
    populate_array(array, data, extents, strides, size, None)
    return array._getvalue()


def array_moved(context: Any, builder: Any, typ: Any, array: Any, address: Any) -> Any:
    """The code of an array of the same extents and strides at `address`."""
    moved = context.make_array(typ)(context, builder, array)
    moved.data = builder.inttoptr(address, moved.data.type)
    return moved._getvalue()
