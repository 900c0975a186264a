"""Functions of nvshmem4py in kernels: names bound to operations, and what arguments become.

There an operation moves as many elements as the shorter array has; here a shorter target is an
error. So arrays are cut to the shorter length first, and what that loses is noted
(`size_mismatch`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from numba.cuda import types
from numba.cuda.typing.templates import Signature

from gpushmem.artifacts.compile_errors import Refused
from gpushmem.backends.codegen import contiguous
from gpushmem.compat.size_mismatch import differ
from gpushmem.errors import ShmemError
from gpushmem.native.memory import intrinsic
from gpushmem.simt.embed import bind
from gpushmem.simt.functions import inlined

POINTERS = types.CPointer, types.RawPointer, types.Integer, types.NoneType
__all__ = ["address", "bound", "first", "fitted", "name", "pointed", "pointer"]


def name(called: str, parameters: str, doc: str) -> Callable[..., Any]:
    """The object by which programs call a function in kernels; on the host it raises."""

    def stub(*args: Any, **kwargs: Any) -> Any:
        raise ShmemError(f"{called}({parameters}) can be called inside kernels only")

    stub.__name__ = stub.__qualname__ = called
    stub.__doc__ = doc
    return stub


def bound(function: Callable[..., Any], body: Callable[..., Any]) -> Callable[..., Any]:
    """Let a name mean a device function in kernels; returns the name."""
    bind(function, inlined(body))
    return function


@intrinsic
def first(typingctx: Any, array: Any, count: Any) -> Any:
    """The first `count` elements of a contiguous array, along one axis."""
    if not isinstance(array, types.Array):
        raise Refused(f"an array is needed here, not {array}")
    if array.layout == "A":
        raise Refused(f"the array is not contiguous ({array}): pass one that is")
    result = types.Array(array.dtype, 1, "C")

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        data = context.make_array(array)(context, builder, args[0]).data
        return contiguous(context, builder, result, data, args[1:])

    return result(array, types.intp), codegen


def fitted(dst: int, src: int, want: int) -> int:
    """The elements that are moved, of `want`, between arrays of `dst` and `src` elements."""
    n = min(dst, src)
    if n < want:
        differ(dst, src, want)
    return n


fitted = inlined(fitted)


@cache
def pointed(dtype: Any, any: bool = False) -> Any:
    """An intrinsic: the `count` elements of a dtype at a pointer, or in an array.

    With `any`, a pointer to any dtype, as C's `void *`.
    """

    @intrinsic
    def at(typingctx: Any, pointer: Any, count: Any) -> Any:
        _check_pointer(pointer, dtype, any)
        result = types.Array(dtype, 1, "C")

        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            start = _start(context, builder, pointer, args[0])
            return contiguous(context, builder, result, start, args[1:])

        signature: Signature = result(pointer, types.intp)
        return signature, codegen

    return at


def _start(context: Any, builder: Any, pointer: Any, value: Any) -> Any:
    """Where the memory begins that a pointer, an array, an address or None means."""
    if isinstance(pointer, types.Array):
        return context.make_array(pointer)(context, builder, value).data
    if isinstance(pointer, types.NoneType):
        return context.get_constant(types.intp, 0)
    if isinstance(pointer, types.Integer):
        return context.cast(builder, value, pointer, types.intp)
    return value


def _check_pointer(pointer: Any, dtype: Any, any: bool) -> None:
    """Raise for what is no pointer, or one to elements of another dtype, if not `any` will do."""
    if isinstance(pointer, types.Array):
        if pointer.layout == "A":
            raise Refused(f"the array is not contiguous ({pointer}): pass one that is")
    elif not isinstance(pointer, POINTERS):
        raise Refused(f"a pointer to {dtype} is needed here, not {pointer}")
    if isinstance(pointer, types.Array | types.CPointer) and not any:
        given = pointer.dtype
        if given not in (dtype, types.none, types.void, types.uint8):
            raise Refused(f"a pointer to {dtype} is needed here, not to {given}")


@intrinsic
def address(typingctx: Any, pointer: Any) -> Any:
    """The address that a pointer, or an array, has."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        start = _start(context, builder, pointer, args[0])
        word = context.get_value_type(types.intp)
        return start if start.type == word else builder.ptrtoint(start, word)

    return types.intp(pointer), codegen


@intrinsic
def pointer(typingctx: Any, number: Any) -> Any:
    """An address as a C pointer to anything."""
    result = types.CPointer(types.void)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(result))

    return result(types.intp), codegen
