"""`put_ll128` and `reduce_ll128` in kernels: lines of 128 bytes, each with data and a flag.

A warp has four pairs of lines at a time, eight lanes each pair. Of the 15 pieces of 16 bytes of a
pair, lane k has piece k for the first line, and 7 + k for the second; lane 7 has piece 14, half of
it for each line, beside the flags. So no lane needs what another one has loaded, and each stores,
and loads, two times 16 bytes, the eight of them a whole line by one instruction. What makes a line
valid is that it travels in one piece then: PTX promises 8 bytes, NVLink and the L2 cache keep 128,
as NCCL relies on, too. `syncwarp` and the vote see to it that lanes are together at those
instructions; the vote ends the loop when all flags are there. There is no fence.

Where lanes run one after the other (nvshmem-cpu), a line is not in one piece: `ONE_PIECE` is 0
there, 1 in code for GPUs, whose assembler leaves out the rest. Then flags are stored when all lanes
have stored data, with a fence between, and data loaded once more when all flags are there.
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
from gpushmem.backends.nvshmem.operations.ll import (
    I64,
    LOAD_TWO,
    STORE_TWO,
    TOGETHER_AT_MOST,
    TWO,
    byte_there,
    rows_of,
)
from gpushmem.backends.nvshmem.operations.multicast import peer_array
from gpushmem.backends.nvshmem.operations.vectors import (
    I32,
    PACK,
    SHARES,
    TOGETHER,
    Word,
    adding,
    address_of,
    closing,
    flat,
    load,
    opening,
    store,
)

__all__ = ["ONE_PIECE", "putting", "reducing"]

LINE, PAIR = 128, 240  # bytes: of a line, and of data in two
LANES, WARP, FLAG = 8, 32, 7  # of a line, of a warp; the lane that has the flag
HALF, LAST = FLAG * PACK, 2 * FLAG * PACK  # where the second line's data begin, and the last piece
ALL, NEVER = 0xFFFFFFFF, 1 << 62
ONE_PIECE = "mov.b32 $0, 1;"
Two = types.UniTuple(Word, 2)


# --- a lane's part of two lines


@intrinsic
def in_one_piece(typingctx: Any) -> Any:
    """Whether what eight lanes store at once arrives at once."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        found = builder.call(ir.InlineAsm(ir.FunctionType(I32, []), ONE_PIECE, "=r"), [])
        return builder.trunc(found, ir.IntType(1))

    return types.boolean(), codegen


@intrinsic
def store_part(typingctx: Any, address: Any, word: Any) -> Any:
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        parts = [builder.zext(part, I64) for part in cgutils.unpack_tuple(builder, args[1])]
        words = [builder.or_(parts[k], builder.shl(parts[k + 1], I64(32))) for k in (0, 2)]
        kind = ir.FunctionType(ir.VoidType(), [args[0].type, I64, I64])
        ordering.assembly(builder, kind, STORE_TWO, "l,l,l", args[0], *words)
        return context.get_dummy_value()

    return types.void(types.intp, Word), codegen


@intrinsic
def load_parts(typingctx: Any, address: Any) -> Any:
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        kind, words = ir.FunctionType(TWO, [args[0].type]), []
        for k in range(2):
            place = builder.add(args[0], args[0].type(LINE * k))
            two = ordering.assembly(builder, kind, LOAD_TWO, "=l,=l,l", place)
            both = [builder.extract_value(two, j) for j in range(2)]
            parts = [
                builder.trunc(part, I32)
                for word in both for part in (word, builder.lshr(word, I64(32)))
            ]  # fmt: skip
            words.append(cgutils.pack_array(builder, parts))
        return cgutils.pack_array(builder, words)

    return Two(types.intp), codegen


@intrinsic
def store_byte(typingctx: Any, address: Any, data: Any) -> Any:
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        place = builder.inttoptr(args[0], ir.IntType(8).as_pointer())
        builder.store(builder.trunc(args[1], place.type.pointee), place)
        return context.get_dummy_value()

    return types.void(types.intp, types.uint32), codegen


@cuda.jit(device=True)
def piece_at(address, nbytes):
    """The PACK bytes there, or fewer."""
    if nbytes >= PACK and address % PACK == 0:
        return load(address)
    a = b = c = d = np.uint32(0)
    for k in range(min(nbytes, PACK)):
        byte = np.uint32(byte_there(address + k) << np.uint32(8 * (k % 4)))
        a |= byte if k < 4 else np.uint32(0)
        b |= byte if 4 <= k < 8 else np.uint32(0)
        c |= byte if 8 <= k < 12 else np.uint32(0)
        d |= byte if k >= 12 else np.uint32(0)
    return a, b, c, d


@cuda.jit(device=True)
def set_piece(address, word, nbytes):
    """Set the PACK bytes there, or fewer."""
    if nbytes >= PACK and address % PACK == 0:
        store(address, word)
    else:
        for k in range(min(nbytes, PACK)):
            low, high = word[0] if k < 4 else word[1], word[2] if k < 12 else word[3]
            store_byte(address + k, (low if k < 8 else high) >> np.uint32(8 * (k % 4)))


@cuda.jit(device=True)
def places_of(thread, n):
    """The thread's lane of a line, which pair of its warp it has, and the warp's first pairs.

    These are for a range: where it begins, and its step. It is empty in a warp that is not whole.
    """
    warp, whole, pairs = thread // WARP, n // WARP, WARP // LANES
    first = pairs * warp if warp < whole else NEVER
    return thread % LANES, thread % WARP // LANES, first, pairs * max(1, whole)


@cache
def putting(scope: str) -> Any:
    """The device function `(dst, src, flag, pe)` for a scope's threads."""
    share, together = SHARES[scope], TOGETHER[scope]

    @cuda.jit(device=True)
    def put_ll128(dst, src, flag, pe):
        given, word, none = flat(src), np.uint32(flag), np.uint32(0)
        target, source, nbytes = (
            address_of(peer_array(dst, pe)), address_of(given), given.size * given.itemsize,
        )  # fmt: skip
        lane, of_warp, begin, step = places_of(*share())
        pairs, one_piece = (nbytes + PAIR - 1) // PAIR, in_one_piece()
        for first_pair in range(begin, pairs, step):
            pair = first_pair + of_warp
            at = PAIR * pair + (LAST if lane == FLAG else PACK * lane)
            to, there = target + 2 * LINE * pair + PACK * lane, pair < pairs
            first = piece_at(source + at, nbytes - at)
            if lane == FLAG:
                second = first[2], first[3], word, none
                first = first[0], first[1], word, none
            else:
                second = piece_at(source + at + HALF, nbytes - at - HALF)
            cuda.syncwarp()
            if there and (one_piece or lane != FLAG):
                store_part(to, first)
                store_part(to + LINE, second)
            if not one_piece:
                cuda.threadfence_system()
                cuda.syncwarp()
                if there and lane == FLAG:
                    store_part(to, first)
                    store_part(to + LINE, second)
        together()

    return put_ll128


# --- receiving


# The array is what tells the cpu engine that a loop waits for memory.


@cuda.jit(device=True)
def look(src, address):
    return load_parts(address)


@cuda.jit(device=True)
def when_all_are_there(src, address, flag, parts):
    """A lane's two pieces, which were `parts` when they were loaded first; of the last lane one."""
    last = address % LINE == HALF
    while not cuda.all_sync(ALL, not last or (parts[0][2] == flag and parts[1][2] == flag)):
        parts = look(src, address)
    if not in_one_piece():
        cuda.threadfence_system()
        parts = look(src, address)
    first, second = parts
    if last:
        return (first[0], first[1], second[0], second[1]), second
    return first, second


@cache
def reducing(scope: str, op: str, dtype: Any, has_instruction: bool) -> Any:
    """The device function `(dst, src, flag)` for a scope's threads."""
    share, together = SHARES[scope], TOGETHER[scope]
    one, add_one, closed = opening(dtype), adding(op, dtype), closing(dtype)

    @cuda.jit(device=True)
    def opened(two):
        return one(two[0]), one(two[1])

    @cuda.jit(device=True)
    def add(total, two):
        return add_one(total[0], two[0]), add_one(total[1], two[1])

    begin, go_on = (
        rows_of(look, when_all_are_there, opened, add, first) for first in (True, False)
    )

    @cuda.jit(device=True)
    def reduce_ll128(dst, src, flag):
        out, word = flat(dst), np.uint32(flag)
        target, base, pitch = address_of(out), address_of(src), src.strides[0]
        nbytes, rows = out.size * out.itemsize, src.shape[0]
        lane, of_warp, first, step = places_of(*share())
        pairs = (nbytes + PAIR - 1) // PAIR
        for first_pair in range(first, pairs, step):
            pair = first_pair + of_warp
            # Lanes behind the last pair wait for it, too: the vote is the whole warp's.
            at = base + 2 * LINE * min(pair, pairs - 1) + PACK * lane
            cuda.syncwarp()
            total = begin(src, at, pitch, rows, word)
            for k in range(TOGETHER_AT_MOST, rows, TOGETHER_AT_MOST):
                total = go_on(src, at + k * pitch, pitch, rows - k, word, total)
            to = PAIR * pair + (LAST if lane == FLAG else PACK * lane)
            set_piece(target + to, closed(total[0]), nbytes - to)
            if lane != FLAG:
                set_piece(target + to + HALF, closed(total[1]), nbytes - to - HALF)
        together()

    return reduce_ll128
