"""`put_ll` and `reduce_ll` in kernels: each unit is one store, and one load, of 8 bytes.

They order nothing but themselves. The wait is for one unit at a time, the first that has not come.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types

from gpushmem.backends.cpu.operations.access import (
    address_of,
    aligned,
    array_at,
    check_symmetric,
    itemsize_of,
    remote,
    size_of,
)
from gpushmem.backends.cpu.operations.blas import in_rows
from gpushmem.backends.cpu.operations.combining import (
    CHUNK,
    a_chunk,
    chunk_as_is,
    loops_of,
    wide,
)
from gpushmem.backends.cpu.operations.hook import has_paused, will_pause
from gpushmem.backends.operation_errors import EMPTY, NOT_BY_ROWS, TOO_FEW_UNITS
from gpushmem.native.memory import i64, intrinsic
from gpushmem.ops import CMP_EQ
from gpushmem.ops.roles import SwitchReduction
from gpushmem.simt.functions import device, outlined
from gpushmem.simt.thread import LOOKS, alone, begin_wait, end_wait, fail_if, pause, text_word

__all__ = [
    "DATA", "REDUCING", "UNIT", "data_at", "flag_word", "put_ll", "target_of", "units_in",
    "with_flag",
]  # fmt: skip

DATA, UNIT = 4, 8  # bytes


# --- a unit


def _moving(bits: int) -> tuple[Any, Any]:
    """The functions that load and store so many bits of data, at any address."""

    @intrinsic
    def load(typingctx: Any, address: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            place = builder.inttoptr(args[0], ir.IntType(bits).as_pointer())
            return builder.zext(builder.load(place, align=1), i64)

        return types.intp(types.intp), codegen

    @intrinsic
    def store(typingctx: Any, address: Any, value: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            place = builder.inttoptr(args[0], ir.IntType(bits).as_pointer())
            builder.store(builder.trunc(args[1], place.type.pointee), place, align=1)
            return context.get_dummy_value()

        return types.void(types.intp, types.intp), codegen

    return load, store


load_byte, store_byte = _moving(8)
load_data, store_data = _moving(8 * DATA)


@intrinsic
def load_unit(typingctx: Any, address: Any) -> Any:
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.load_atomic(builder.inttoptr(args[0], i64.as_pointer()), "monotonic", UNIT)

    return types.intp(types.intp), codegen


@intrinsic
def store_unit(typingctx: Any, address: Any, unit: Any) -> Any:
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        place = builder.inttoptr(args[0], i64.as_pointer())
        builder.store_atomic(args[1], place, "monotonic", UNIT)
        return context.get_dummy_value()

    return types.void(types.intp, types.intp), codegen


@intrinsic
def flag_word(typingctx: Any, flag: Any) -> Any:
    """The low 32 bits of any integer."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.and_(context.cast(builder, args[0], flag, types.intp), i64(0xFFFFFFFF))

    return types.intp(flag), codegen


@device
def with_flag(data, flag):
    return data | flag << 32


@device
def flag_of(unit):
    return unit >> 32 & 0xFFFFFFFF


@device
def data_at(address, nbytes):
    """The first DATA bytes there, or fewer."""
    if nbytes >= DATA:
        return load_data(address)
    data = 0
    for k in range(nbytes):
        data |= load_byte(address + k) << 8 * k
    return data


@device
def units_in(array):
    """How many units an array takes."""
    return (size_of(array) * itemsize_of(array) + DATA - 1) // DATA


# --- the operations


@device
def target_of(dst, src, pe):
    """Where the units of `src` go."""
    need = units_in(src)
    fail_if(size_of(dst) < need, TOO_FEW_UNITS, size_of(dst), need, 0, 0)
    return aligned(remote(address_of(dst), need * UNIT, pe), UNIT)


@outlined
def send(target, source, nbytes, flag):
    whole = nbytes // DATA
    for k in range(whole):
        store_unit(target + UNIT * k, with_flag(load_data(source + DATA * k), flag))
    rest = nbytes - DATA * whole
    if rest > 0:
        data = data_at(source + DATA * whole, rest)
        store_unit(target + UNIT * whole, with_flag(data, flag))


def put_ll(dst, src, flag, pe):
    target, nbytes = target_of(dst, src, pe), size_of(src) * itemsize_of(src)
    send(target, address_of(src), nbytes, flag_word(flag))


@outlined
def take(to, units, nbytes, flag, first):
    """Copy data from unit `first` on, up to the first that has not come; returns its number."""
    k, n = first, (nbytes + DATA - 1) // DATA
    while k < n:
        unit = load_unit(units + UNIT * k)
        if flag_of(unit) != flag:
            break
        at, rest = to + DATA * k, nbytes - DATA * k
        if rest >= DATA:
            store_data(at, unit)
        else:
            for j in range(rest):
                store_byte(at + j, unit >> 8 * j)
        k += 1
    return k


@device
def receive(what, to, units, nbytes, flag):
    """Copy the data of units, of so many bytes, when they have come."""
    n, seen, turns = (nbytes + DATA - 1) // DATA, -1, 0
    k = take(to, units, nbytes, flag, 0)
    while k < n:
        turns += 1
        if turns % LOOKS == 0 or not alone():
            if seen != k:
                seen = k
                begin_wait(what, units + UNIT * k + DATA, CMP_EQ, flag, UNIT - DATA)
            will_pause()
            pause()
            has_paused()
        k = take(to, units, nbytes, flag, k)
    if seen >= 0:
        end_wait()


def _reduce_ll(op: str) -> Callable[..., Any]:
    _, _, _, _, go_on, end = loops_of(op)

    def begin(like, total, address, count):
        part = array_at(like, address, count)
        for i in range(count):
            total[i] = wide(part[i])

    begin = outlined(begin, f"{__name__}.begin")

    @device
    def combined(what, dst, base, pitch, n, flag):
        total, part, size, item = a_chunk(dst), chunk_as_is(dst), size_of(dst), itemsize_of(dst)
        here = address_of(part)
        for first in range(0, size, CHUNK):
            count, units = min(CHUNK, size - first), base + first * item // DATA * UNIT
            for k in range(n):
                receive(what, here, units + k * pitch, count * item, flag)
                if k == 0:
                    begin(dst, total, here, count)
                elif k < n - 1:
                    go_on(dst, total, here, count)
            end(dst, total, address_of(dst) + first * item, here, count)

    def reduce_ll(dst, src, flag):
        n, units = src.shape
        pitch, step = src.strides
        need, base = units_in(dst), aligned(address_of(src), UNIT)
        fail_if(n < 1, EMPTY, 0, 0, 0, 0)
        fail_if(units < need, TOO_FEW_UNITS, units, need, 0, 0)
        fail_if(not in_rows(src, units, step, n, pitch), NOT_BY_ROWS, pitch, step, 0, 0)
        check_symmetric(base, (n - 1) * pitch + units * UNIT)
        what, word = text_word("reduce_ll"), flag_word(flag)
        if n == 1:
            receive(what, address_of(dst), base, size_of(dst) * itemsize_of(dst), word)
        else:
            combined(what, dst, base, pitch, n, word)

    return reduce_ll


REDUCING = {"reduce_ll": {op: _reduce_ll(op) for op in SwitchReduction.names}}
