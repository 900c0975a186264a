"""What the operations inside kernels share: where an array is on another PE, and what is an error.

A launch's `user` word points to the `WORLD`, so `remote` is all of the addressing there is. PE
numbers, symmetry and sizes are checked on every call: a few compares beside a copy.
"""

from __future__ import annotations

from typing import Any

from numba import types

from gpushmem.backends.cpu.world import WORLD
from gpushmem.errors import ArgumentError, ShmemError, SymmetryError
from gpushmem.simt.layout import view
from gpushmem.simt.native import intrinsic
from gpushmem.simt.primitives import fail_if, user_word
from gpushmem.simt.target import device

__all__ = [
    "BAD_COMPARISON",
    "BAD_SIGNAL_OP",
    "BAD_STRIDE",
    "EMPTY",
    "OUTSIDE",
    "TOO_SHORT",
    "TOO_SMALL",
    "TRAPS",
    "address_of",
    "as_world",
    "copy_element",
    "itemsize_of",
    "load_element",
    "nothing",
    "remote",
    "remote_element",
    "size_of",
    "store_element",
]

as_world = view(WORLD)

(
    BAD_PE, NOT_SYMMETRIC, TOO_SMALL, BAD_SIGNAL_OP, BAD_COMPARISON, EMPTY, TOO_SHORT, BAD_STRIDE,
    OUTSIDE,
) = range(2, 11)  # fmt: skip

# What the failure codes mean: exception class, and the message with the four numbers recorded.
TRAPS: dict[int, tuple[type[ShmemError], str]] = {
    BAD_PE: (ArgumentError, "there is no PE {0}: PEs are 0 to {1}"),
    NOT_SYMMETRIC: (
        SymmetryError,
        "a remote array of {1} bytes at {0:#x} is not on the symmetric heap ({2:#x} to {3:#x}): "
        "allocate it with gpushmem.empty or zeros",
    ),
    TOO_SMALL: (ArgumentError, "the target has {0} elements, the source {1}: pass a slice of it"),
    BAD_SIGNAL_OP: (
        ArgumentError,
        "there is no signal operation {0}: use SIGNAL_SET or SIGNAL_ADD",
    ),
    BAD_COMPARISON: (ArgumentError, "there is no comparison {0}: use CMP_EQ, NE, GT, LE, LT or GE"),
    EMPTY: (ArgumentError, "the array has no element 0"),
    BAD_STRIDE: (
        ArgumentError,
        "strides must be 1 or more, not {0} and {1}; a number of elements 0 or more, not {2}",
    ),
    OUTSIDE: (ArgumentError, "element {0} is outside of an array of {1} elements"),
    TOO_SHORT: (
        ArgumentError,
        "{0} elements are to be compared, but status, indices or value has {1} elements",
    ),
}


# --- addresses


@device
def remote(address, nbytes, pe):
    """Address on `pe` of the `nbytes` that are symmetric with those at `address`."""
    world = as_world(user_word())
    heap, end = world.heap, world.heap + world.heap_bytes
    fail_if(pe < 0 or pe >= world.n_pes, BAD_PE, pe, world.n_pes - 1, 0, 0)
    fail_if(address < heap or address + nbytes > end, NOT_SYMMETRIC, address, nbytes, heap, end)
    return address + (pe - world.my_pe) * world.stride


def _array_word(of_array: Any, result: Any = types.intp) -> Any:
    @intrinsic
    def word(typingctx: Any, array: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            return of_array(builder, context.make_array(array)(context, builder, args[0]))

        return result(array), codegen

    return word


address_of = _array_word(lambda b, a: b.ptrtoint(a.data, a.nitems.type))
size_of = _array_word(lambda b, a: a.nitems)
itemsize_of = _array_word(lambda b, a: a.itemsize)


def nothing(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    """The code of an intrinsic that only looks at types."""
    return context.get_dummy_value()


# --- elements


@device
def remote_element(array, pe):
    """Address on `pe` of the symmetric `array`'s element 0."""
    fail_if(size_of(array) < 1, EMPTY, 0, 0, 0, 0)
    return remote(address_of(array), itemsize_of(array), pe)


def _is_word(typ: Any) -> bool:
    return isinstance(typ, types.Integer | types.Float) and typ.bitwidth in (8, 16, 32, 64)


@intrinsic
def store_element(typingctx: Any, array: Any, address: Any, value: Any) -> Any:
    """Store one element of `array`'s dtype at `address`, in one piece if it is a number."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        _, address, value = args
        data = context.get_data_type(array.dtype)
        pointer = builder.inttoptr(address, data.as_pointer())
        if _is_word(array.dtype):
            builder.store_atomic(value, pointer, "monotonic", array.dtype.bitwidth // 8)
        else:
            context.pack_value(builder, array.dtype, value, pointer)
        return context.get_dummy_value()

    return types.void(array, types.intp, array.dtype), codegen


@intrinsic
def load_element(typingctx: Any, array: Any, address: Any) -> Any:
    """Load one element of `array`'s dtype from `address`, in one piece if it is a number."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        data = context.get_data_type(array.dtype)
        pointer = builder.inttoptr(args[1], data.as_pointer())
        if _is_word(array.dtype):
            return builder.load_atomic(pointer, "monotonic", array.dtype.bitwidth // 8)
        return context.unpack_value(builder, array.dtype, pointer)

    return array.dtype(array, types.intp), codegen


@intrinsic
def copy_element(typingctx: Any, array: Any, target: Any, source: Any) -> Any:
    """Copy one element of `array`'s dtype from address to address."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        pointer = context.get_data_type(array.dtype).as_pointer()
        value = builder.load(builder.inttoptr(args[2], pointer), align=1)
        builder.store(value, builder.inttoptr(args[1], pointer), align=1)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.intp), codegen
