"""`put_ll` and `reduce_ll` in kernels: units, each of 4 bytes of data and a flag.

A thread stores the units of 16 bytes of data by two instructions of 16 bytes, and loads them in the
same way: first those of all rows, eight at a time, so that they come together; then it looks at
their flags, and loads again what had not come. These are PTX's relaxed accesses of the system's
scope, vectors of two words of 8 bytes: each word is read and written in one piece, which PTX does
not say of a vector of four words of 4 bytes. There is no fence: data and flag are one word.

Places that are not aligned to 16 bytes, and what is beside, go unit by unit.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import cuda
from numba.cuda import cgutils, types

from gpushmem.backends.nvshmem.operations import ordering
from gpushmem.backends.nvshmem.operations.device_calls import intrinsic
from gpushmem.backends.nvshmem.operations.multicast import peer_array
from gpushmem.backends.nvshmem.operations.vectors import (
    PACK,
    SHARES,
    TOGETHER,
    Word,
    adding,
    address_of,
    closing,
    flat,
    has_packs,
    load,
    opening,
    store,
    widened,
)
from gpushmem.backends.reductions import COMBINE

__all__ = [
    "I64", "LOAD_TWO", "STORE_TWO", "TOGETHER_AT_MOST", "TWO", "byte_there", "putting",
    "reducing", "rows_of",
]  # fmt: skip

DATA, UNIT = 4, 8  # bytes
TOGETHER_AT_MOST = 8  # rows that a thread loads before it looks at one
I32, I64 = ir.IntType(32), ir.IntType(64)
TWO = ir.LiteralStructType([I64, I64])
LOAD_TWO = "ld.relaxed.sys.global.v2.b64 {$0, $1}, [$2];"
STORE_TWO = "st.relaxed.sys.global.v2.b64 [$0], {$1, $2};"
Units = types.UniTuple(types.uint32, 2 * Word.count)  # of one pack: data, then flags


# --- units


def _unit(builder: Any, data: Any, flag: Any) -> Any:
    return builder.or_(builder.zext(data, I64), builder.shl(builder.zext(flag, I64), I64(32)))


@intrinsic
def store_unit(typingctx: Any, address: Any, data: Any, flag: Any) -> Any:
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        ordering.store(builder, args[0], _unit(builder, *args[1:]), 8 * UNIT)
        return context.get_dummy_value()

    return types.void(types.intp, types.uint32, types.uint32), codegen


@intrinsic
def load_unit(typingctx: Any, address: Any) -> Any:
    """A unit, as one number."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return ordering.load(builder, args[0], 8 * UNIT)

    return types.uint64(types.intp), codegen


@intrinsic
def store_units(typingctx: Any, address: Any, word: Any, flag: Any) -> Any:
    """Store the units of a word of data."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        address, word, flag = args
        units = [_unit(builder, data, flag) for data in cgutils.unpack_tuple(builder, word)]
        kind = ir.FunctionType(ir.VoidType(), [address.type, I64, I64])
        for k in (0, 2):
            place = builder.add(address, address.type(UNIT * k))
            ordering.assembly(builder, kind, STORE_TWO, "l,l,l", place, *units[k : k + 2])
        return context.get_dummy_value()

    return types.void(types.intp, Word, types.uint32), codegen


@intrinsic
def load_units(typingctx: Any, address: Any) -> Any:
    """The units of a word of data: what each has of it, then their flags."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        (address,) = args
        kind, units = ir.FunctionType(TWO, [address.type]), []
        for k in (0, 2):
            place = builder.add(address, address.type(UNIT * k))
            two = ordering.assembly(builder, kind, LOAD_TWO, "=l,=l,l", place)
            units += [builder.extract_value(two, j) for j in range(2)]
        data = [builder.trunc(unit, I32) for unit in units]
        flags = [builder.trunc(builder.lshr(unit, I64(32)), I32) for unit in units]
        return cgutils.pack_array(builder, data + flags)

    return Units(types.intp), codegen


# The array is what tells the cpu engine that a loop waits for memory.


@cuda.jit(device=True)
def look(src, address):
    return load_units(address)


@cuda.jit(device=True)
def look_at_one(src, address):
    return load_unit(address)


@cuda.jit(device=True)
def when_all_are_there(src, address, flag, units):
    """The data of units, which were `units` when they were loaded first."""
    while units[4] != flag or units[5] != flag or units[6] != flag or units[7] != flag:
        units = look(src, address)
    return units[0], units[1], units[2], units[3]


@cuda.jit(device=True)
def when_one_is_there(src, address, flag):
    unit = look_at_one(src, address)
    while np.uint32(unit >> np.uint64(32)) != flag:
        unit = look_at_one(src, address)
    return np.uint32(unit)


# --- sending


@intrinsic
def data_there(typingctx: Any, address: Any) -> Any:
    """The DATA bytes at a multiple of DATA."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.load(builder.inttoptr(args[0], I32.as_pointer()), align=DATA)

    return types.uint32(types.intp), codegen


@intrinsic
def byte_there(typingctx: Any, address: Any) -> Any:
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        place = builder.inttoptr(args[0], ir.IntType(8).as_pointer())
        return builder.zext(builder.load(place), I32)

    return types.uint32(types.intp), codegen


@cuda.jit(device=True)
def data_at(address, nbytes):
    """The first DATA bytes there, or fewer."""
    if nbytes >= DATA and address % DATA == 0:
        return data_there(address)
    data = np.uint32(0)
    for k in range(min(nbytes, DATA)):
        data |= np.uint32(byte_there(address + k) << np.uint32(8 * k))
    return data


@cache
def putting(scope: str) -> Any:
    """The device function `(dst, src, flag, pe)` for a scope's threads."""
    share, together = SHARES[scope], TOGETHER[scope]

    @cuda.jit(device=True)
    def put_ll(dst, src, flag, pe):
        given, word = flat(src), np.uint32(flag)
        target, source = address_of(peer_array(dst, pe)), address_of(given)
        nbytes, packs, (first, step) = given.size * given.itemsize, 0, share()
        if target % PACK == 0 and source % PACK == 0:
            packs = nbytes // PACK
            for k in range(first, packs, step):
                store_units(target + 2 * PACK * k, load(source + PACK * k), word)
        for k in range(PACK // DATA * packs + first, (nbytes + DATA - 1) // DATA, step):
            store_unit(target + UNIT * k, data_at(source + DATA * k, nbytes - DATA * k), word)
        together()

    return put_ll


# --- receiving


def rows_of(look: Any, there: Any, opened: Any, add: Any, first: bool) -> Any:
    """The device function that combines what is in some rows: at most TOGETHER_AT_MOST of `n`.

    `(src, at, pitch, n, flag)`: the first ones; with `total` behind: more of them. `look` and
    `there` are functions as those above.
    """
    scope = {"look": look, "there": there, "opened": opened, "add": add}
    lines = ["def rows(src, at, pitch, n, flag, total):", "    u0 = look(src, at)"]
    numbers = range(1, TOGETHER_AT_MOST)
    lines += [f"    u{k} = look(src, at + {k} * pitch) if n > {k} else u0" for k in numbers]
    word = "there(src, at, flag, u0)"
    lines += [f"    total = {f'opened({word})' if first else f'add(total, {word})'}"]
    for k in numbers:
        lines += [f"    if n > {k}:"]
        lines += [f"        total = add(total, there(src, at + {k} * pitch, flag, u{k}))"]
    if first:
        lines[0] = lines[0].replace(", total", "")
    exec("\n".join([*lines, "    return total"]), scope)  # noqa: S102
    return cuda.jit(device=True)(scope["rows"])


def _in_packs(op: str, dtype: Any, share: Any) -> Any:
    """The device function that combines the words of rows, if all is aligned; returns how many."""
    how = look, when_all_are_there, opening(dtype), adding(op, dtype)
    begin, go_on, closed = rows_of(*how, True), rows_of(*how, False), closing(dtype)

    @cuda.jit(device=True)
    def packs(dst, src, flag):
        target, base, pitch, n = address_of(dst), address_of(src), src.strides[0], src.shape[0]
        if target % PACK != 0 or base % PACK != 0 or (n > 1 and pitch % PACK != 0):
            return 0
        words, (first, step) = dst.size * dst.itemsize // PACK, share()
        for j in range(first, words, step):
            at = base + 2 * PACK * j
            total = begin(src, at, pitch, n, flag)
            for k in range(TOGETHER_AT_MOST, n, TOGETHER_AT_MOST):
                total = go_on(src, at + k * pitch, pitch, n - k, flag, total)
            store(target + PACK * j, closed(total))
        return words

    return packs


@cuda.jit(device=True)
def no_packs(dst, src, flag):
    return 0


@intrinsic
def element_of(typingctx: Any, like: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    """The element of an array's dtype with these bits, widened."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        slot = cgutils.alloca_once(builder, I32, size=4)
        for k, data in enumerate(args[1:]):
            builder.store(data, builder.gep(slot, [I32(k)]))
        place = builder.bitcast(slot, context.get_data_type(like.dtype).as_pointer())
        element = context.unpack_value(builder, like.dtype, place)
        return context.cast(builder, element, like.dtype, sig.return_type)

    return widened(like.dtype)(like, *[types.uint32] * 4), codegen


@cuda.jit(device=True)
def element(dst, src, row, i, flag):
    """Element `i` of a row of units, when it is there."""
    size, none = dst.itemsize, np.uint32(0)
    at = row + i * size // DATA * UNIT
    a, b, c, d = when_one_is_there(src, at, flag), none, none, none
    if size < DATA:
        a = np.uint32(a >> np.uint32(8 * (i * size % DATA)))
    if size > DATA:
        b = when_one_is_there(src, at + UNIT, flag)
    if size > 2 * DATA:
        c = when_one_is_there(src, at + 2 * UNIT, flag)
        d = when_one_is_there(src, at + 3 * UNIT, flag)
    return element_of(dst, a, b, c, d)


@cache
def reducing(scope: str, op: str, dtype: Any, has_instruction: bool) -> Any:
    """The device function `(dst, src, flag)` for a scope's threads."""
    share, together, combine = SHARES[scope], TOGETHER[scope], cuda.jit(device=True)(COMBINE[op])
    packs: Any = _in_packs(op, dtype, share) if has_packs(dtype) else no_packs

    @cuda.jit(device=True)
    def reduce_ll(dst, src, flag):
        out, word, (first, step) = flat(dst), np.uint32(flag), share()
        base, pitch = address_of(src), src.strides[0]
        done = packs(out, src, word) * PACK // out.itemsize
        for i in range(done + first, out.size, step):
            total = element(out, src, base, i, word)
            for k in range(1, src.shape[0]):
                total = combine(total, element(out, src, base + k * pitch, i, word))
            out[i] = total
        together()

    return reduce_ll
