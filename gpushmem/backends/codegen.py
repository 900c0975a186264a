"""Helpers of code generators on all backends: arrays, and functions to be compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from llvmlite import ir
from numba.cuda import types
from numba.cuda.np.arrayobj import populate_array

from gpushmem.ops.row import WORDS

__all__ = ["array_moved", "contiguous", "dtype_name", "with_signature", "words_for"]


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


def words_for(builder: Any, nbytes: Any, kind: str) -> Any:
    """How many words of data and flags so many bytes of data take; `kind` is one of WORDS."""
    data, words = map(nbytes.type, WORDS[kind])
    return builder.mul(
        builder.udiv(builder.add(nbytes, nbytes.type(data.constant - 1)), data), words
    )


def dtype_name(typ: Any) -> str:
    """What NumPy calls an element's type, which C++'s bfloat16 is, too."""
    return str(typ).removeprefix("__nv_")


def with_signature(name: str, parameters: Iterable[Any], inner: Any) -> Callable[..., Any]:
    """A function called `name` that passes its arguments to `inner`, as one tuple.

    Compilers bind arguments by a function's own parameters, so it is made from text. `parameters`
    are names, or `inspect.Parameter`s, whose names and defaults are used.
    """
    plain = [p if isinstance(p, str) else str(p.replace(annotation=p.empty)) for p in parameters]
    names = "".join(f"{text.partition('=')[0].strip()}, " for text in plain)
    scope: dict[str, Any] = {"inner": inner, "__name__": __name__}
    exec(f"def {name}({', '.join(plain)}):\n    return inner(({names}))", scope)  # noqa: S102
    made: Callable[..., Any] = scope[name]
    return made
