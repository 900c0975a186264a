"""`load_vector` and `store_vector` in kernels, on all backends: their types, and elements as words.

A backend says how words are loaded and stored. They are integers, of one width, next to each other;
elements are taken out of them, and put in, by shifts: memory on the stack would let the optimiser
split the access.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from llvmlite import ir
from numba.cuda import cgutils, types

from gpushmem.backends.argument_types import literal_access
from gpushmem.ops import OPS
from gpushmem.ops.roles import SCOPES

__all__ = ["WIDEST", "Access", "definitions", "place_of"]

I64 = ir.IntType(64)
WIDEST = 16  # bytes of an access


class Access(NamedTuple):
    """One access: `order`, one of PTX's or "stream"; `scope`, an index of SCOPES; its words."""

    order: str
    scope: int
    bits: int  # of a word
    words: int  # how many

    @property
    def nbytes(self) -> int:
        """Of all words."""
        return self.bits * self.words // 8


def _accesses(
    builder: Any, row: str, how: Any, address: Any, nbytes: int, unit: int
) -> Iterator[tuple[Any, Access]]:
    """The accesses that move so many bytes, and where: one, or one for each 16 bytes."""
    order, _, scope = literal_access(OPS[row], how).partition(".")
    wide = 64 if scope or unit > 4 else 32  # what is atomic is as wide as can be
    bits, each = min(8 * nbytes, wide), min(nbytes, WIDEST)
    access = Access(order, SCOPES.index(scope) if scope else 0, bits, 8 * each // bits)
    for first in range(0, nbytes, each):
        yield builder.add(address, I64(first)), access


def definitions(
    load: Callable[[Any, Any, Access], list[Any]], store: Callable[[Any, Any, Access, Any], None]
) -> dict[str, Callable[..., Any]]:
    """The definitions of the rows' intrinsics.

    `load(builder, address, access)` gives words, `store(builder, address, access, words)` sets
    them.
    """

    def load_vector(typingctx: Any, array: Any, i: Any, n: Any, access: Any = "weak") -> Any:
        result = types.UniTuple(array.dtype, n.literal_value)

        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            address, itemsize = place_of(context, builder, array, args)
            words, unit = [], _unit(array.dtype, itemsize)
            for where in _accesses(
                builder, "load_vector", access, address, result.count * itemsize, unit
            ):
                words += load(builder, *where)
            words = _resized(builder, words, 8 * unit)
            elements, each = [], itemsize // unit
            for k in range(0, len(words), each):
                slot = _slot(context, builder, array.dtype, words[k].type)
                for j, word in enumerate(words[k : k + each]):
                    builder.store(word, builder.gep(slot.words, [I64(j)]))
                elements.append(context.unpack_value(builder, array.dtype, slot.element))
            return cgutils.pack_array(builder, elements)

        return result(array, types.intp, n, _typed(access)), codegen

    def store_vector(typingctx: Any, array: Any, i: Any, value: Any, access: Any = "weak") -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            address, itemsize = place_of(context, builder, array, args)
            words, unit = [], _unit(array.dtype, itemsize)
            for k, typ in enumerate(value):
                element = context.cast(builder, builder.extract_value(args[2], k), typ, array.dtype)
                slot = _slot(context, builder, array.dtype, ir.IntType(8 * unit))
                context.pack_value(builder, array.dtype, element, slot.element)
                each = range(itemsize // unit)
                words += [builder.load(builder.gep(slot.words, [I64(j)])) for j in each]
            size, first = len(value) * itemsize, 0
            for place, how in _accesses(builder, "store_vector", access, address, size, unit):
                resized = _resized(builder, words, how.bits)
                store(builder, place, how, resized[first : first + how.words])
                first += how.words
            return context.get_dummy_value()

        return types.void(array, types.intp, value, _typed(access)), codegen

    return {f.__name__: f for f in (load_vector, store_vector)}


def _typed(access: Any) -> Any:
    """The type of a literal; also of the parameter's default."""
    return types.literal(access) if isinstance(access, str) else access


def place_of(context: Any, builder: Any, array: Any, args: Any) -> tuple[Any, int]:
    """The address of element `i` of an array, and the bytes of one."""
    given = context.make_array(array)(context, builder, args[0])
    itemsize = context.get_abi_sizeof(context.get_data_type(array.dtype))
    offset = builder.mul(args[1], args[1].type(itemsize))
    return builder.add(builder.ptrtoint(given.data, I64), offset), itemsize


def _unit(dtype: Any, itemsize: int) -> int:
    """Bytes of the words that an element is made of.

    Of a complex64 its two numbers: LLVM stores what is put together of them as two.
    """
    return 4 if dtype == types.complex64 else min(itemsize, 8)


class Slot(NamedTuple):
    """Room for an element, optimised away: as its own type, and as words."""

    element: Any
    words: Any


def _slot(context: Any, builder: Any, dtype: Any, word: Any) -> Slot:
    element = cgutils.alloca_once(builder, context.get_data_type(dtype))
    return Slot(element, builder.bitcast(element, word.as_pointer()))


def _resized(builder: Any, words: list[Any], bits: int) -> list[Any]:
    """The same bits as integers of another width."""
    given, kind = words[0].type.width, ir.IntType(bits)
    if given > bits:
        return [
            builder.trunc(builder.lshr(word, word.type(shift)), kind)
            for word in words
            for shift in range(0, given, bits)
        ]
    each, made = bits // given, []
    for k in range(0, len(words), each):
        whole = kind(0)
        for j, word in enumerate(words[k : k + each]):
            wide = builder.zext(word, kind) if given < bits else word
            whole = builder.or_(whole, builder.shl(wide, kind(j * given))) if each > 1 else wide
        made.append(whole)
    return made
