"""A collective that XLA calls as a C function, by its typed FFI; see `integrations.jax`.

The C function finds a team by its number in a table of this process, and makes the call of its
`HostCollectives`, in XLA's thread and without the GIL, for which that thread would wait while
Python goes on. It has Python make calls that the table does not know yet, and end those for which
others come late.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types

from gpushmem.artifacts.argument_packing import address_of
from gpushmem.backends.cpu.c_calls import (
    BUSY,
    address_of_table,
    group_of,
    make,
    set_places,
    trying,
    unlocking,
)
from gpushmem.backends.cpu.sync.world import HALF_BYTES
from gpushmem.native.c_function import c_function
from gpushmem.native.internal import internal
from gpushmem.native.lock import try_lock, unlock
from gpushmem.native.memory import i64, intrinsic, word_at
from gpushmem.native.structs import new, offset, struct, view

__all__ = ["BUSY", "GROUP", "TEAMS", "WHAT", "handler", "place_of", "table", "trying", "unlocking"]

WHAT = "all_reduce", "all_gather", "reduce_scatter", "all_to_all"  # the last two send rows
TEAMS, OPS, DTYPES = 64, 8, 32  # numbers below these are in the tables
GROUP = group_of(len(WHAT) * OPS * DTYPES)
TABLE = struct(("slow", "i8"), ("late", "i8"), ("groups", "i8", (TEAMS,)))
GROUPS = offset(TABLE, "groups")
as_group, as_table = view(GROUP), view(TABLE)
table, TABLE_NAME = new(TABLE), "gpushmem_xla_groups"  # and its name in C functions
word = types.intp
# Words of a frame, in xla/ffi/api/c_api.h: the extensions, and the lists of what was given.
EXTENSION, ARGUMENTS, RESULTS, ATTRIBUTES = 1, 9, 14, 20


groups = address_of_table(TABLE_NAME)


@intrinsic
def ask(typingctx: Any, function: Any, argument: Any) -> Any:
    """Call the C function `int64 f(int64)` at an address."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        kind = ir.FunctionType(i64, [i64])
        return builder.call(builder.inttoptr(args[0], kind.as_pointer()), [args[1]])

    return word(word, word), codegen


@internal
def attribute(frame: int, k: int) -> int:
    """The 64-bit integer that is attribute `k`, in the alphabetical order of their names."""
    return word_at(word_at(word_at(word_at(frame + 8 * ATTRIBUTES) + 8 * k) + 8))


@internal
def buffer_of(frame: int, part: int) -> int:
    """The buffer behind the token."""
    return word_at(word_at(frame + 8 * part) + 8)


@internal
def elements(buffer: int) -> int:
    """How many elements a buffer has."""
    found, dims = 1, word_at(buffer + 40)
    for k in range(word_at(buffer + 32)):
        found *= word_at(dims + 8 * k)
    return found


@internal
def attempt(frame: int) -> int:
    """Make a call: 1 if it is done, 0 if Python has to, 2 if Python has to end it."""
    op, team, what = attribute(frame, 0), attribute(frame, 1), attribute(frame, 2)
    at = word_at(groups() + GROUPS + 8 * team) if team < TEAMS else 0
    if at == 0 or not try_lock(at + BUSY):
        return 0
    group, x, out = as_group(at), buffer_of(frame, ARGUMENTS), buffer_of(frame, RESULTS)
    of = group.of[(what * OPS + op) * DTYPES + (word_at(x + 16) & (DTYPES - 1))]
    if of.kind == 0:
        unlock(at + BUSY)
        return 0
    n, lists, scatters = group.n_pes, group.lists, 1 if what >= 2 else 0
    given, taken = elements(x) * of.itemsize, elements(out) * of.itemsize
    set_places(lists, n, word_at(x + 24), given, scatters)
    set_places(lists + 16 * n, n, word_at(out + 24), taken, 1 if of.fold == 0 else 0)
    piece = HALF_BYTES // n // 64 * 64 if scatters else HALF_BYTES
    return make(
        at, of.kind, word_at(lists + 8 * n), piece, 1 - scatters, of.fold, of.launch, of.words,
        of.itemsize,
    )  # fmt: skip


def handle(frame: int) -> int:
    """XLA's handler: returns an error of XLA's, or null."""
    done = attempt(frame) if word_at(frame + 8 * EXTENSION) == 0 else 0
    if done == 1:
        return 0
    return ask(as_table(groups()).slow if done == 0 else as_table(groups()).late, frame)


@cache
def handler() -> Any:
    """The handler, for ctypes."""
    llvm.add_symbol(TABLE_NAME, address_of(table))
    return c_function(word(word), handle).callable(ctypes.c_int64, ctypes.c_int64)


def place_of(what: int, op: int, dtype: int) -> int:
    """Where `of` has a call of these numbers."""
    return (what * OPS + op) * DTYPES + dtype
