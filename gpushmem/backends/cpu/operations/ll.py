"""`put_ll` and `reduce_ll` in kernels, and those of LL128: data, and flags that tell of them.

A unit of LL is one store, and one load, of 8 bytes. A line of LL128 cannot be: no processor says
that 128 bytes stay together. So its flag is released after its data, and acquired before they are.
A flag in each word would be the other way, but a format that GPUs do not have.

They order nothing but themselves. The wait is for one at a time, the first that has not come.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

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
from gpushmem.backends.cpu.operations.combining import a_chunk, chunk_as_is, loops_of, wide
from gpushmem.backends.cpu.operations.hook import has_paused, will_pause
from gpushmem.backends.operation_errors import EMPTY, NOT_BY_ROWS, TOO_FEW_UNITS
from gpushmem.native.memory import copy_bytes, i64, intrinsic, load_acquire, store_release
from gpushmem.ops import CMP_EQ
from gpushmem.ops.roles import SwitchReduction
from gpushmem.ops.row import LINE, UNIT, WORDS
from gpushmem.simt.functions import device, outlined
from gpushmem.simt.thread import LOOKS, alone, begin_wait, end_wait, fail_if, pause, text_word

__all__ = [
    "BODIES", "LINE_BYTES", "LINE_DATA", "PROTOCOLS", "REDUCING", "TARGETS", "WORD", "fill_line",
    "flag_word", "unit_at",
]  # fmt: skip

WORD = 8  # bytes, as all that follow
DATA = WORDS[UNIT][0]
PAIR, LINE_BYTES, LINE_DATA = WORDS[LINE][0], 128, 120
MOST = 112  # of the data of a line, that follow each other
CHUNK = 240  # elements that are combined at a time: of any dtype whole units, and pairs of lines


# --- units


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
        return builder.load_atomic(builder.inttoptr(args[0], i64.as_pointer()), "monotonic", WORD)

    return types.intp(types.intp), codegen


@intrinsic
def store_unit(typingctx: Any, address: Any, unit: Any) -> Any:
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        place = builder.inttoptr(args[0], i64.as_pointer())
        builder.store_atomic(args[1], place, "monotonic", WORD)
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
def unit_at(source, nbytes, k, flag):
    """Unit `k` of the data there, of which the last may have fewer than DATA bytes."""
    at, data = source + DATA * k, 0
    if nbytes >= DATA * (k + 1):
        data = load_data(at)
    else:
        for j in range(nbytes - DATA * k):
            data |= load_byte(at + j) << 8 * j
    return with_flag(data, flag)


@device
def units_for(nbytes):
    return (nbytes + DATA - 1) // DATA


@outlined
def send_units(target, source, nbytes, flag):
    for k in range(units_for(nbytes)):
        store_unit(target + WORD * k, unit_at(source, nbytes, k, flag))


@outlined
def take_units(to, units, nbytes, flag, first):
    """Copy data from unit `first` on, up to the first that has not come; returns its number."""
    k, n = first, units_for(nbytes)
    while k < n:
        unit = load_unit(units + WORD * k)
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


# --- lines: of the 15 pieces of 16 bytes of a pair, the first has 0 to 6 and half of the last one


@device
def parts_of(nbytes, k):
    """Where the two parts of line `k` are in so many bytes of data, and how long they are."""
    pair, half = PAIR * (k // 2), k % 2
    first, second = pair + MOST * half, pair + 2 * MOST + WORD * half
    return first, max(0, min(MOST, nbytes - first)), second, max(0, min(WORD, nbytes - second))


@device
def fill_line(line, source, nbytes, k):
    """Copy to a line what it has of the data, without the flag."""
    first, n, second, m = parts_of(nbytes, k)
    copy_bytes(line, source + first, n)
    copy_bytes(line + MOST, source + second, m)


@device
def lines_for(nbytes):
    return (nbytes + PAIR - 1) // PAIR * 2


@outlined
def send_lines(target, source, nbytes, flag):
    for k in range(lines_for(nbytes)):
        line = target + LINE_BYTES * k
        fill_line(line, source, nbytes, k)
        store_release(line + LINE_DATA, flag)


@outlined
def take_lines(to, lines, nbytes, flag, first):
    """As `take_units`."""
    k, n = first, lines_for(nbytes)
    while k < n:
        line = lines + LINE_BYTES * k
        if load_acquire(line + LINE_DATA) != flag:
            break
        first, n_first, second, n_second = parts_of(nbytes, k)
        copy_bytes(to + first, line, n_first)
        copy_bytes(to + second, line + MOST, n_second)
        k += 1
    return k


# --- the operations


class Protocol(NamedTuple):
    """How data are sent, by functions of their addresses and bytes, and where their flags are."""

    kind: str  # of WORDS
    align: int
    send: Any
    take: Any
    number: Any  # of units or lines for some bytes
    size: int  # of one
    flag: int  # in it
    width: int


PROTOCOLS = {
    "ll": Protocol(UNIT, WORD, send_units, take_units, units_for, WORD, DATA, WORD - DATA),
    "ll128": Protocol(
        LINE, LINE_BYTES, send_lines, take_lines, lines_for, LINE_BYTES, LINE_DATA, WORD
    ),
}


def _functions_of(name: str) -> tuple[Any, Any, Any]:
    """Device functions of a protocol: where a put goes, the put, and the wait for a row."""
    _, align, send, take, number, size, flag_at, width = PROTOCOLS[name]

    @device
    def target_of(dst, nbytes, pe):
        need = number(nbytes) * size
        fail_if(size_of(dst) * WORD < need, TOO_FEW_UNITS, size_of(dst), need // WORD, 0, 0)
        return aligned(remote(address_of(dst), need, pe), align)

    def put(dst, src, flag, pe):
        nbytes = size_of(src) * itemsize_of(src)
        send(target_of(dst, nbytes, pe), address_of(src), nbytes, flag_word(flag))

    @device
    def receive(what, to, units, nbytes, flag):
        """Copy the data of units, of so many bytes, when they have come."""
        n, seen, turns = number(nbytes), -1, 0
        k = take(to, units, nbytes, flag, 0)
        while k < n:
            turns += 1
            if turns % LOOKS == 0 or not alone():
                if seen != k:
                    seen = k
                    begin_wait(what, units + size * k + flag_at, CMP_EQ, flag, width)
                will_pause()
                pause()
                has_paused()
            k = take(to, units, nbytes, flag, k)
        if seen >= 0:
            end_wait()

    return target_of, put, receive


def _reducing(name: str, op: str) -> Callable[..., Any]:
    (data, words), align = WORDS[PROTOCOLS[name].kind], PROTOCOLS[name].align
    number, size, receive = PROTOCOLS[name].number, PROTOCOLS[name].size, FUNCTIONS[name][2]
    _, _, _, _, go_on, end = loops_of(op)
    called = f"reduce_{name}"

    def begin(like, total, address, count):
        part = array_at(like, address, count)
        for i in range(count):
            total[i] = wide(part[i])

    begin = outlined(begin, f"{__name__}.begin")

    @device
    def combined(what, dst, base, pitch, n, flag):
        total, part, count_all, item = (
            a_chunk(dst),
            chunk_as_is(dst),
            size_of(dst),
            itemsize_of(dst),
        )
        here = address_of(part)
        for first in range(0, count_all, CHUNK):
            count = min(CHUNK, count_all - first)
            units = base + first * item // data * words * WORD
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
        nbytes = size_of(dst) * itemsize_of(dst)
        need, base = number(nbytes) * size // WORD, aligned(address_of(src), align)
        fail_if(n < 1, EMPTY, 0, 0, 0, 0)
        fail_if(units < need, TOO_FEW_UNITS, units, need, 0, 0)
        fail_if(not in_rows(src, units, step, n, pitch), NOT_BY_ROWS, pitch, step, 0, 0)
        check_symmetric(base, (n - 1) * pitch + units * WORD)
        what, word = text_word(called), flag_word(flag)
        if n == 1:
            receive(what, address_of(dst), base, nbytes, word)
        else:
            aligned(base + pitch, align)
            combined(what, dst, base, pitch, n, word)

    return reduce_ll


FUNCTIONS = {name: _functions_of(name) for name in PROTOCOLS}
TARGETS = {name: target_of for name, (target_of, _, _) in FUNCTIONS.items()}
BODIES = {f"put_{name}": put for name, (_, put, _) in FUNCTIONS.items()}
REDUCING = {
    f"reduce_{name}": {op: _reducing(name, op) for op in SwitchReduction.names}
    for name in PROTOCOLS
}
