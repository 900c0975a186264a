"""Calls of a team's `HostCollectives` that C functions make, of PyTorch's or XLA's, without Python.

A GROUP has what they need. Who has its lock makes a call: a C function, or Python; the next one
sees what it leaves in memory.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

from llvmlite import ir
from numba import types

from gpushmem.backends.cpu import host_collectives
from gpushmem.backends.cpu.host_collectives import as_call
from gpushmem.backends.cpu.sync.host_barrier import BYTES
from gpushmem.native.c_function import c_function
from gpushmem.native.internal import internal
from gpushmem.native.lock import try_lock, unlock
from gpushmem.native.memory import i64, intrinsic, set_word
from gpushmem.native.structs import offset, struct, view

__all__ = [
    "BUSY", "OF_CALL", "address_of_table", "group_of", "make", "set_places", "trying", "unlocking",
]  # fmt: skip

OF_CALL = struct(  # as a CALL has them; `kind` is 0: not known yet
    ("kind", "i8"), ("fold", "i8"), ("launch", "i8"), ("words", "i8"), ("itemsize", "i8")
)
FIELDS = (
    ("busy", "i8"),  # a lock: who has it makes a call
    ("closed", "i8"),  # whether all calls are Python's
    ("made", "i8"),  # how many were made without Python
    ("call", "i8"),  # address of the CALL of its `HostCollectives`, ...
    ("lists", "i8"),  # ... and of what is sent and taken
    ("n_pes", "i8"),
    ("cached", "i8"),  # what a CALL begins with
)
ANY = struct(*FIELDS)
BUSY = offset(ANY, "busy")
as_any = view(ANY)
advance = internal(host_collectives.advance)
word = types.intp


def group_of(kinds: int) -> Any:
    """The structure GROUP, with so many kinds of calls in `of`."""
    return struct(*FIELDS, ("of", OF_CALL, (kinds,)))


def address_of_table(name: str) -> Any:
    """A function for C functions: the address of a table of this process, by its name in them.

    Code that is kept from run to run has the name.
    """

    @intrinsic
    def address(typingctx: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            known = builder.module.globals.get(name)
            place = known or ir.GlobalVariable(builder.module, ir.IntType(8), name)
            return builder.ptrtoint(place, i64)

        return word(), codegen

    return address


@internal
def set_places(lists: int, n: int, address: int, nbytes: int, by_rows: int) -> None:
    """Addresses and sizes for each PE: of a row each, or of all for the first."""
    row = nbytes // n if by_rows else nbytes
    for k in range(n):
        there = k == 0 or by_rows
        set_word(lists + 8 * k, address + k * row if there else 0)
        set_word(lists + 8 * (n + k), row if there else 0)


@internal
def make(
    at: int, kind: int, nbytes: int, piece: int, same: int, fold: int, launch: int, words: int,
    itemsize: int,
) -> int:  # fmt: skip
    """Make a call of the group whose lock this thread has, of what its `lists` say.

    1 if it is done: the lock is given back; 2 if Python has to end it.
    """
    group = as_any(at)
    call, lists = as_call(group.call), group.lists
    call.kind, call.detail, call.longest = kind + nbytes * BYTES, 0, nbytes
    call.piece, call.sends, call.same = piece, lists, same
    call.takes = lists + 16 * group.n_pes
    call.fold, call.fold_launch, call.fold_words = fold, launch, words
    call.itemsize, call.cached = itemsize, group.cached
    call.at = call.number = call.differs = 0
    if not advance(group.call, 0) or call.differs != 0:
        return 2
    group.made += 1
    unlock(at + BUSY)
    return 1


@cache
def trying() -> Callable[[int], bool]:
    """`try_lock` for Python."""
    code = c_function(types.boolean(word), try_lock.py_func)
    return code.callable(ctypes.c_bool, ctypes.c_int64)


@cache
def unlocking() -> Callable[[int], None]:
    """`unlock` for Python."""
    return c_function(types.void(word), unlock.py_func).callable(None, ctypes.c_int64)
