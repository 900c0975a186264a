"""Helpers of the operations in kernels: addresses on other PEs, copies, and errors.

A launch's `user` word points to the `WORLD`, so `remote` is all of the addressing there is. PE
numbers, symmetry and sizes are checked on every call: a few compares beside a copy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types

from gpushmem.backends.code import array_moved, contiguous
from gpushmem.backends.cpu.operations import convergence
from gpushmem.backends.cpu.sync.host_barrier import ALIKE, elsewhere, mismatch
from gpushmem.backends.cpu.sync.world import WORLD
from gpushmem.backends.hostcalls import NO_AMOUNT
from gpushmem.diagnosis.arrays import Arrays
from gpushmem.errors import (
    ArgumentError,
    CollectiveMismatch,
    KernelError,
    ShmemError,
    SymmetryError,
    TeamError,
)
from gpushmem.native.memory import copy_bytes, full_fence, intrinsic, load_acquire, stream_line
from gpushmem.native.structs import view
from gpushmem.ops import QP_ANY, QP_DEFAULT
from gpushmem.ops.row import BLOCK, THREAD, WARP
from gpushmem.simt.functions import device, inlined, outlined
from gpushmem.simt.launch import APART, LEFT, OWED, UNLIKE, KernelFailure
from gpushmem.simt.layout import THREAD as THREAD_RECORD
from gpushmem.simt.thread import fail_if, thread_word, user_word

as_world, as_thread = view(WORLD), view(THREAD_RECORD)
LANES_OF = {THREAD: 1, WARP: 32, BLOCK: 1024}  # threads of a scope, at most
as_number = view(np.dtype([("v", "i4")]))  # of a queue pair
SMALL = 1 << 20  # bytes that always stay in the caches

(
    BAD_PE, NOT_SYMMETRIC, TOO_SMALL, BAD_SIGNAL_OP, BAD_COMPARISON, EMPTY, TOO_SHORT, BAD_STRIDE,
    OUTSIDE, BAD_TEAM, BAD_ROOT, NOT_DIVISIBLE, MISMATCH, ENDED,
    NOT_ALLOCATED, NO_ROOM, ELSEWHERE, UNALIGNED, BAD_TIMEOUT, BAD_SHAPES, NOT_BY_ROWS, NO_MEMORY,
    TWICE, FAR, FAR_TEAM, UNREGISTERED, FEW, SMALL_BLOCK, BAD_QP,
    BAD_AMOUNT, NOT_SHARED, MISPLACED, SMALL_SMEM, GIVEN, NOT_GIVEN, NOT_NOW, CUT,
) = range(2, 39)  # fmt: skip


def _shapes(a: int, b: int, rows: int, columns: int, *_: int) -> str:
    (m, k), (depth, n) = (divmod(shape, 2**32) for shape in (a, b))
    return (
        f"a is {m} x {k}, b {depth} x {n}, dst {rows} x {columns}: a must have as many columns "
        "as b has rows, dst the rows of a and the columns of b"
    )


def _bad_qp(number: int, last: int, *_: int) -> str:
    made = f"it has made {QP_DEFAULT + 1} to {last}" if last > QP_DEFAULT else "it has made none"
    return (
        f"this PE has no queue pair {number}: {made} (gpushmem.qp_create), besides QP_DEFAULT, "
        f"{QP_DEFAULT}, and QP_ANY, for an operation"
    )


def _unregistered(pe: int, address: int, nbytes: int, is_target: int, *_: int) -> str:
    return (
        f"PE {pe} is on another node, and {'dst' if is_target else 'src'} ({nbytes} bytes at "
        f"{address:#x}) is neither symmetric nor registered: a network adapter reaches no other "
        "memory. Use a symmetric array, or register this one (gpushmem.register)"
    )


# Failure code -> exception class, and the message with the numbers recorded.
TRAPS: dict[int, tuple[type[ShmemError], str | Callable[..., str]]] = {
    BAD_PE: (ArgumentError, "there is no PE {0}: PEs are 0 to {1}"),
    NOT_SYMMETRIC: (
        SymmetryError,
        "a remote array of {1} bytes at {0:#x} is not on the symmetric heap: allocate it with "
        "gpushmem.empty or zeros",
    ),
    NOT_ALLOCATED: (
        SymmetryError,
        "a remote array of {1} bytes at offset {0:#x} of the symmetric heap is not in one "
        "allocated array: it was freed, or goes past the end of another",
    ),
    TOO_SMALL: (ArgumentError, "the target has {0} elements, the source {1}: pass a slice of it"),
    CUT: (ArgumentError, "dst has {0} elements, src {1}: pass slices of one length"),
    BAD_QP: (ArgumentError, _bad_qp),
    BAD_SIGNAL_OP: (
        ArgumentError,
        "there is no signal operation {0}: use SIGNAL_SET or SIGNAL_ADD",
    ),
    BAD_COMPARISON: (ArgumentError, "there is no comparison {0}: use CMP_EQ, NE, GT, LE, LT or GE"),
    BAD_TIMEOUT: (ArgumentError, "timeout_ns must be 0 or more nanoseconds, not {0}"),
    BAD_SHAPES: (ArgumentError, _shapes),
    NOT_BY_ROWS: (
        ArgumentError,
        "a matrix has strides of {0} and {1} bytes: the elements of a row must be adjacent, or, "
        "in a and b, those of a column, and rows or columns must not overlap",
    ),
    NO_MEMORY: (KernelError, "no memory to multiply {0} x {1} and {1} x {2} float16 as float32"),
    EMPTY: (ArgumentError, "the array has no element 0: it is empty"),
    UNALIGNED: (
        ArgumentError,
        "the element at {0:#x} is not aligned to its {1} bytes; atomic operations, signals and "
        "waits need that",
    ),
    BAD_STRIDE: (
        ArgumentError,
        "strides must be 1 or more, not {0} and {1}; a number of elements 0 or more, not {2}",
    ),
    OUTSIDE: (ArgumentError, "element {0} is outside of an array of {1} elements"),
    BAD_TEAM: (
        TeamError,
        "there is no team {0}: it was destroyed, or this PE is not in it; TEAM_INVALID is -1",
    ),
    BAD_ROOT: (
        ArgumentError,
        "there is no PE {0} in the team to be the root: its PEs are 0 to {1}",
    ),
    NOT_DIVISIBLE: (
        ArgumentError,
        "src has {0} elements, which are not {1} equal parts, one for each PE of the team",
    ),
    MISMATCH: (CollectiveMismatch, mismatch),
    ELSEWHERE: (CollectiveMismatch, elsewhere),
    NO_ROOM: (ArgumentError, "dst has {0} elements, and needs {1}"),
    ENDED: (
        CollectiveMismatch,
        f"waits for PE {{0}}, which ended without making this call. {ALIKE}",
    ),
    TWICE: (CollectiveMismatch, convergence.twice),
    FAR: (
        SymmetryError,
        "PE {0} is on another node: peer_array gives no address there; use put or get. PEs that it "
        "reaches are in TEAM_SHARED",
    ),
    FAR_TEAM: (
        SymmetryError,
        "PE {0} of the team is on another node, which loads and stores cannot reach; use get or "
        "put. PEs that they reach are in TEAM_SHARED",
    ),
    UNREGISTERED: (SymmetryError, _unregistered),
    FEW: (
        KernelError,
        "PE {0} is on another node, and the calling warp has {1} of 32 threads: over a network "
        "NVSHMEM needs whole warps. Launch blocks of a multiple of 32 threads, or call the "
        "operation of one thread",
    ),
    SMALL_BLOCK: (
        KernelError,
        "the block has {0} threads: NVSHMEM sums by whole warps, and wrongly in blocks of fewer "
        "than {1}. Launch at least that many, or call the operation of one thread",
    ),
    BAD_AMOUNT: (ArgumentError, NO_AMOUNT),
    NOT_SHARED: (
        ArgumentError,
        "smem, {1} bytes at {0:#x}, is not in the block's shared memory: give an array of "
        "cuda.shared.array",
    ),
    MISPLACED: (
        ArgumentError,
        "smem begins {0} bytes after a multiple of {1}: it must begin at one, as "
        "cuda.shared.array(n, dtype, alignment={1}) does",
    ),
    SMALL_SMEM: (
        ArgumentError,
        "smem has {0} bytes, and NVSHMEM keeps {1} for itself: give ask_smem(SMEM_RECOMMENDED) "
        "bytes, or SMEM_MINIMUM; dynamic shared memory is given to the launch",
    ),
    GIVEN: (KernelError, convergence.given),
    NOT_NOW: (KernelError, convergence.not_now),
    NOT_GIVEN: (KernelError, "the block has given no memory: call give_smem before"),
    OWED: (
        KernelError,
        "the block has ended without release_smem: let every thread call it before it returns",
    ),
    APART: (KernelError, convergence.apart),
    UNLIKE: (KernelError, convergence.unlike),
    LEFT: (KernelError, convergence.left),
    TOO_SHORT: (
        ArgumentError,
        "{0} elements are to be compared, but status, indices or value has {1} elements",
    ),
}


NAMING = {TWICE, APART, UNLIKE, LEFT}  # their texts name the operation


def error_of(code: int, where: str, *values: int) -> ShmemError:
    """The error for a failure code and its numbers."""
    kind, text = TRAPS[code]
    return kind(f"{where}: {text.format(*values) if isinstance(text, str) else text(*values)}")


# Which numbers of a failure are addresses of arrays, and what the arrays are called.
ABOUT = {
    NOT_SYMMETRIC: {0: "it"}, EMPTY: {0: "it"}, UNALIGNED: {0: "it"}, OUTSIDE: {2: "it"},
    TOO_SMALL: {2: "dst", 3: "src"}, NO_ROOM: {2: "dst"}, UNREGISTERED: {1: "it"},
    NOT_SHARED: {0: "it"},
}  # fmt: skip


def explain(failure: KernelFailure, where: str, arrays: Arrays) -> ShmemError:
    """The error for a kernel that failed, naming the operation that detected it."""
    if failure.code not in TRAPS:
        return KernelError(f"{where}: {failure.what()}")
    error = error_of(failure.code, where, *failure.values)
    known = ""
    for index, name in ABOUT.get(failure.code, {}).items():
        found = arrays.at(failure.values[index])
        if found is not None:
            known += f"; {name} is {found}"
        elif failure.code in (NOT_SYMMETRIC, UNREGISTERED):
            known += "; it is memory of the kernel (local or shared), or of the host"
    return type(error)(f"{error}{known}")


# --- addresses


@outlined
def allocated(address, start, end):
    """Whether offsets `start` to `end` are within one allocated block of the WORLD at `address`."""
    world = as_world(address)
    low, high = 0, world.n_blocks  # the first block that ends at `end` or later is between
    while low < high:
        middle = (low + high) // 2
        if load_acquire(world.blocks + 16 * middle + 8) < end:
            low = middle + 1
        else:
            high = middle
    return low < world.n_blocks and load_acquire(world.blocks + 16 * low) <= start


@inlined
def leads(lanes):
    """Whether the thread is the first of its warp, or of its block: see LANES_OF."""
    thread = as_thread(thread_word())
    x, y, z = thread.tid[0], thread.tid[1], thread.tid[2]
    return (x + thread.bdim[0] * (y + thread.bdim[1] * z)) % lanes == 0


@inlined
def check_pe(pe):
    n_pes = as_world(user_word()).n_pes
    fail_if(pe < 0 or pe >= n_pes, BAD_PE, pe, n_pes - 1, 0, 0)


@device
def remote(address, nbytes, pe):
    """Address on `pe` of the `nbytes` that are symmetric with those at `address`."""
    world = as_world(user_word())
    heap, end = world.heap, world.heap + world.heap_bytes
    check_pe(pe)
    fail_if(address < heap or address + nbytes > end, NOT_SYMMETRIC, address, nbytes, heap, end)
    if world.blocks != 0:
        start = address - heap
        within = allocated(user_word(), start, start + nbytes)
        fail_if(not within, NOT_ALLOCATED, start, nbytes, 0, 0)
    return address + (pe - world.my_pe) * world.stride


@outlined
def check_symmetric(address, nbytes):
    """Fail unless bytes of this PE are symmetric; for operations that wait."""
    remote(address, nbytes, as_world(user_word()).my_pe)


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
    """The code of an intrinsic that only checks types."""
    return context.get_dummy_value()


# --- queue pairs: numbers, which mean something only where memory is weak


@inlined
def check_qp(number):
    """Fail for what is not the number of a queue pair."""
    last = as_world(user_word()).last_qp
    fail_if(number < QP_DEFAULT or number > last, BAD_QP, number, last, 0, 0)


@inlined
def check_qp_of_operation(number):
    if number != QP_ANY:
        check_qp(number)


@inlined
def check_qps(address, count):
    for k in range(count):
        check_qp(as_number(address + 4 * k).v)


# --- elements


@device
def remote_element(array, pe):
    """Address on `pe` of the symmetric `array`'s element 0."""
    fail_if(size_of(array) < 1, EMPTY, address_of(array), 0, 0, 0)
    return remote(address_of(array), itemsize_of(array), pe)


@device
def aligned(address, nbytes):
    """The address of an element; fails if it is not a multiple of the element's size."""
    fail_if(address & (nbytes - 1) != 0, UNALIGNED, address, nbytes, 0, 0)
    return address


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


@intrinsic
def array_at(typingctx: Any, like: Any, address: Any, count: Any) -> Any:
    """The `count` elements of `like`'s dtype at `address`, as an array."""
    result = types.Array(like.dtype, 1, "C")

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return contiguous(context, builder, result, args[1], args[2:])

    return result(like, types.intp, types.intp), codegen


@intrinsic
def array_like(typingctx: Any, array: Any, address: Any) -> Any:
    """An array of the same extents and strides at `address`."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return array_moved(context, builder, array, *args)

    return array(array, types.intp), codegen


# --- copies


@device
def copy_large(target, source, nbytes, touched):
    """Copy, bypassing the caches if more bytes are `touched` in all than these hold."""
    copy_or_stream(target, source, nbytes, touched < as_world(user_word()).cached)


@outlined
def copy_or_stream(target, source, nbytes, cached):
    """Copy, bypassing the caches unless `cached`.

    Lines are then written without being read first, which is most of a large copy's time. These
    stores are not ordered with others: `full_fence` before another thread may rely on them.
    """
    apart = target + nbytes <= source or source + nbytes <= target
    if cached or not apart:
        copy_bytes(target, source, nbytes)
    else:
        head = min(-target & 63, nbytes)
        end = head + (nbytes - head) // 64 * 64
        copy_bytes(target, source, head)
        for at in range(head, end, 64):
            stream_line(target + at, source + at)
        copy_bytes(target + end, source + end, nbytes - end)


@device
def copy_one(target, source, nbytes):
    """The copy of an operation that copies once."""
    if nbytes < SMALL:
        copy_bytes(target, source, nbytes)
    else:
        copy_large(target, source, nbytes, 2 * nbytes)
        full_fence()


MOST = 2**62  # elements: more than any array has


@device
def reach(stride, n):
    """Elements from the first to the last of `n` that lie `stride` apart; at most `MOST`."""
    if n < 1:
        return 0
    if n > 1 and stride > MOST // (n - 1):
        return MOST
    return (n - 1) * stride + 1


@device
def check_numbers(dst_stride, src_stride, n):
    bad = dst_stride < 1 or src_stride < 1 or n < 0
    fail_if(bad, BAD_STRIDE, dst_stride, src_stride, n, 0)


@device
def check_reach(stride, n, have, address):
    need = reach(stride, n)
    fail_if(need > have, OUTSIDE, need - 1, have, address, 0)


@device
def check_strides(dst, src, dst_stride, src_stride, n):
    check_numbers(dst_stride, src_stride, n)
    check_reach(src_stride, n, size_of(src), address_of(src))
    check_reach(dst_stride, n, size_of(dst), address_of(dst))


@device
def copy_strided(array, target, target_stride, source, source_stride, n):
    step = itemsize_of(array)
    for i in range(n):
        copy_element(array, target + i * target_stride * step, source + i * source_stride * step)
