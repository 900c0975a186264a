"""An all-reduce that PyTorch's dispatcher calls as a C function; see `torch.direct`.

PyTorch's stable C interface is of functions with an error's number as result, of handles: words.
The C function finds a group by its name in a table of this process, and makes the call of its
`HostCollectives`, or has Python make or end it.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from gpushmem.backends.cpu.c_calls import (
    BUSY,
    OF_CALL,
    address_of_table,
    group_of,
    make,
    set_places,
    trying,
    unlocking,
)
from gpushmem.backends.cpu.sync.world import HALF_BYTES
from gpushmem.native.c_function import CFunction, c_function
from gpushmem.native.internal import internal
from gpushmem.native.lock import try_lock, unlock
from gpushmem.native.memory import (
    call_address,
    i64,
    intrinsic,
    load_acquire,
    word_at,
)
from gpushmem.native.structs import new, offset, struct, view

__all__ = [
    "BUSY", "FETCHED", "GROUP", "OF_DTYPE", "OF_PYTHON", "SYMBOLS", "TABLE_NAME", "WORDS",
    "all_reduce_code", "table", "trying", "unlocking",
]  # fmt: skip

CODES, NAMES, WORDS = 64, 64, 8  # dtypes in PyTorch's C interface; groups; words of a name
OF_DTYPE, GROUP = OF_CALL, group_of(CODES)
NAMED = struct(("text", "i8", (WORDS,)), ("length", "i8"), ("group", "i8"))  # length 0: nothing
TABLE = struct(("slow", "i8"), ("late", "i8"), ("named", NAMED, (NAMES,)))
ROWS, ROW = offset(TABLE, "named"), NAMED.itemsize
as_group, as_named, as_table = view(GROUP), view(NAMED), view(TABLE)
table, TABLE_NAME = new(TABLE), "gpushmem_torch_groups"  # and its name in C functions
word = types.intp


names = address_of_table(TABLE_NAME)


def _fetch(name: str) -> Any:
    """A function of PyTorch's that stores something of a handle: it is returned, as a word."""

    @intrinsic
    def fetch(typingctx: Any, handle: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            out = cgutils.alloca_once(builder, i64)
            builder.store(i64(0), out)
            kind = ir.FunctionType(ir.IntType(32), [i64, i64.as_pointer()])
            builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [args[0], out])
            return builder.load(out)

        return word(word), codegen

    return fetch


def _give(name: str) -> Any:
    """A C function of one word, whose result does not count."""

    @intrinsic
    def give(typingctx: Any, handle: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            kind = ir.FunctionType(ir.IntType(32), [i64])
            builder.call(cgutils.get_or_insert_function(builder.module, kind, name), args)
            return context.get_dummy_value()

        return types.void(word), codegen

    return give


@intrinsic
def raise_here(typingctx: Any, error: Any) -> Any:
    """Let Python raise an error of this class in this thread, when it goes on."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        def call(name: str, *given: Any) -> Any:
            kind = ir.FunctionType(i64, [x.type for x in given])
            return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), given)

        state = builder.trunc(call("PyGILState_Ensure"), ir.IntType(32))
        call("PyThreadState_SetAsyncExc", call("PyThread_get_thread_ident"), args[0])
        call("PyGILState_Release", state)
        return context.get_dummy_value()

    return types.void(word), codegen


FETCHED = {
    "data": "aoti_torch_get_data_ptr", "numel": "aoti_torch_get_numel",
    "dtype": "aoti_torch_get_dtype", "contiguous": "aoti_torch_is_contiguous",
    "text": "torch_string_c_str", "length": "torch_string_length",
}  # fmt: skip
DELETED = "aoti_torch_delete_tensor_object", "torch_delete_string"
SYMBOLS = *FETCHED.values(), *DELETED  # of PyTorch; the rest is Python's
OF_PYTHON = (
    "PyGILState_Ensure", "PyGILState_Release", "PyThreadState_SetAsyncExc",
    "PyThread_get_thread_ident",
)  # fmt: skip
data_of, numel_of, dtype_of_tensor, is_contiguous, text_of, length_of = map(
    _fetch, FETCHED.values()
)
delete_tensor, delete_string = map(_give, DELETED)


@internal
def find(text: int, length: int) -> int:
    """Address of the group of this name; 0: Python knows it."""
    for k in range(NAMES):
        row = names() + ROWS + k * ROW
        if as_named(row).length != length + 1:
            continue
        differs = 0
        for i in range(length // 8):
            differs |= word_at(row + 8 * i) ^ word_at(text + 8 * i)
        if length % 8:  # a string begins at a multiple of 8
            last = length // 8 * 8
            differs |= (word_at(row + last) ^ word_at(text + last)) << (64 - length % 8 * 8)
        if differs == 0:
            return as_named(row).group
    return 0


@internal
def attempt(at: int, tensor: int) -> int:
    """Make a call of a group: 1 if it is done, 0 if Python has to, 2 if Python has to end it."""
    group = as_group(at)
    if group.closed != 0 or not try_lock(at + BUSY):
        return 0
    of = group.of[dtype_of_tensor(tensor) & (CODES - 1)]
    if of.kind == 0 or group.closed != 0 or is_contiguous(tensor) == 0:
        unlock(at + BUSY)
        return 0
    nbytes, n, data = numel_of(tensor) * of.itemsize, group.n_pes, data_of(tensor)
    for lists in (group.lists, group.lists + 16 * n):
        set_places(lists, n, data, nbytes, 0)
    return make(
        at, of.kind, nbytes, HALF_BYTES, 1, of.fold, of.launch, of.words, of.itemsize
    )  # fmt: skip


def all_reduce(stack: int, arguments: int, results: int) -> None:
    """The operator; `stack` has the handles of the tensor and of the group's name."""
    tensor, name = word_at(stack), word_at(stack + 8)
    at = find(text_of(name), length_of(name))
    done = attempt(at, tensor) if at != 0 else 0
    if done != 1:
        call_address(as_table(names()).slow if done == 0 else as_table(names()).late, stack)
        error = load_acquire(stack)
        if error != 0:
            raise_here(error)
    delete_tensor(tensor)
    delete_string(name)


@cache
def all_reduce_code() -> CFunction:
    """The operator's kernel."""
    return c_function(types.void(word, word, word), all_reduce)
