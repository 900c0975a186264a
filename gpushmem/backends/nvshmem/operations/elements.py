"""Operations on one element of any dtype, which is moved as words.

Where the PE's memory is mapped, the words are loaded and stored (`ordering`), else NVSHMEM moves
them.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.cuda import cgutils, types

from gpushmem.backends.codegen import array_moved
from gpushmem.backends.nvshmem.operations import ordering
from gpushmem.backends.nvshmem.operations.device_calls import Value, call, data_of, itemsize_of

__all__ = ["DEFINITIONS", "FUNCTIONS"]


class Words:
    """The words of one element: their number, width and place."""

    def __init__(self, context: Any, builder: Any, array: Any) -> None:
        self.context, self.builder = context, builder
        itemsize = itemsize_of(array)
        unit = next(width for width in (8, 4, 2, 1) if itemsize % width == 0)
        self.n, self.bits = itemsize // unit, 8 * unit
        self.pointer = ir.IntType(self.bits).as_pointer()
        self.type = getattr(types, f"uint{self.bits}")
        # Optimised away: a value on its way between its own type and words.
        self.element = cgutils.alloca_once(builder, context.get_data_type(array.dtype))

    def place(self, base: Any, index: int) -> Any:
        """Pointer to word `index` of the element at `base`."""
        words = self.builder.bitcast(base, self.pointer)
        return self.builder.gep(words, [ir.IntType(32)(index)])

    def mapped(self, base: Any, pe: Any) -> Any:
        """Where the element at `base` is mapped on `pe`: an integer, 0 if it is not."""
        word = self.builder.ptrtoint(base, ir.IntType(64))
        given = [Value(types.uint64, word), Value(types.intp, pe)]
        return call(self.context, self.builder, "gpushmem_ptr", given)

    def at(self, address: Any, index: int) -> Any:
        """The address of word `index` of the element at an address."""
        return self.builder.add(address, address.type(index * self.bits // 8))

    def call(self, name: str, *values: Value) -> Any:
        """NVSHMEM's `p` or `g`, named without the width, for words of this width."""
        return call(self.context, self.builder, name.format(self.bits), [*values])


P, QP_P, G = FUNCTIONS = "uint{}_p", "qp_uint{}_p", "uint{}_g"


def _p(name: str, dst: Any, places: list[Any]) -> Any:
    """`p` for an array; `places`: the types of a PE, and of a queue pair if there is one."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        words, where = Words(context, builder, dst), list(map(Value, places, args[2:]))
        context.pack_value(builder, dst.dtype, args[1], words.element)
        target = data_of(context, builder, Value(dst, args[0]))
        there = words.mapped(target, args[2])
        values = [builder.load(words.place(words.element, i)) for i in range(words.n)]
        with builder.if_else(cgutils.is_not_null(builder, there)) as (near, far):
            with near:
                for i, word in enumerate(values):
                    ordering.store(builder, words.at(there, i), word, words.bits)
            with far:
                for i, word in enumerate(values):
                    place = Value(types.voidptr, words.place(target, i))
                    words.call(name, place, Value(words.type, word), *where)
        return context.get_dummy_value()

    return types.void(dst, dst.dtype, *places), codegen


def _g(src: Any, places: list[Any]) -> Any:
    """`g`, likewise: without the queue pair.

    NVSHMEM 3.8 asks its proxy on the default one, and then waits for the one that is given
    (proxy_device.cuh, nvshmemi_proxy_rma_g): it returns what was in the answer's place before.
    """

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        words, pe = Words(context, builder, src), Value(types.intp, args[1])
        source = data_of(context, builder, Value(src, args[0]))
        there = words.mapped(source, args[1])
        with builder.if_else(cgutils.is_not_null(builder, there)) as (near, far):
            with near:
                for i in range(words.n):
                    word = ordering.load(builder, words.at(there, i), words.bits)
                    builder.store(word, words.place(words.element, i))
            with far:
                for i in range(words.n):
                    word = words.call(G, Value(types.voidptr, words.place(source, i)), pe)
                    builder.store(word, words.place(words.element, i))
        return context.unpack_value(builder, src.dtype, words.element)

    return src.dtype(src, *places), codegen


PE, PE_AND_QP = [types.intp], [types.intp, types.intp]


def p(typingctx: Any, dst: Any, value: Any, pe: Any) -> Any:
    return _p(P, dst, PE)


def qp_p(typingctx: Any, dst: Any, value: Any, pe: Any, qp: Any) -> Any:
    return _p(QP_P, dst, PE_AND_QP)


def g(typingctx: Any, src: Any, pe: Any) -> Any:
    return _g(src, PE)


def qp_g(typingctx: Any, src: Any, pe: Any, qp: Any) -> Any:
    return _g(src, PE_AND_QP)


def peer_array(typingctx: Any, array: Any, pe: Any) -> Any:

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        values = [Value(array, args[0]), Value(types.intp, args[1])]
        address = call(context, builder, "gpushmem_ptr", values)
        return array_moved(context, builder, array, args[0], address)

    return array(array, types.intp), codegen


DEFINITIONS = {f.__name__: f for f in (p, g, qp_p, qp_g, peer_array)}
