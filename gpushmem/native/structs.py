"""Structures that native code and Python share: NumPy dtypes, read from three sides.

Python fills and reads them through NumPy, compiled functions through Numba records (`view`), and
code that is made by hand through `offset`. Every address is an `i8`: Numba mixes signed and
unsigned 64-bit integers into floats.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.np.numpy_support import from_dtype

from gpushmem.native.memory import intrinsic

__all__ = ["new", "offset", "struct", "view"]


def struct(*fields: Any) -> np.dtype[Any]:
    """Make the dtype of a structure, laid out as C does."""
    return np.dtype(list(fields), align=True)


def offset(struct: np.dtype[Any], field: str) -> int:
    """Byte offset of `field` in `struct`."""
    fields = struct.fields
    assert fields is not None
    return int(fields[field][1])


def new(struct: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Make one zeroed `struct`; `[0]` and `["field"][0]` reach it, `address_of` locates it."""
    return np.zeros(1, struct)


def view(struct: np.dtype[Any]) -> Any:
    """Make an intrinsic `f(address) -> record` for `struct`, for use inside compiled code."""
    record = from_dtype(struct)

    @intrinsic
    def record_at(typingctx: Any, address: Any) -> Any:
        def codegen(context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> Any:
            pointer = context.get_value_type(record)
            return builder.inttoptr(args[0], pointer)

        return record(types.intp), codegen

    return record_at
