"""Helpers of the operations in kernels: addresses on other PEs, copies, and errors.

A launch's `user` word points to the `WORLD`, so `remote` is all of the addressing there is. PE
numbers, symmetry and sizes are checked on every call: a few compares beside a copy.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from gpushmem.backends.codegen import array_moved, contiguous
from gpushmem.backends.cpu.operations import convergence
from gpushmem.backends.cpu.sync.host_barrier import elsewhere, mismatch
from gpushmem.backends.cpu.sync.world import WORLD
from gpushmem.backends.operation_errors import (
    ALIKE,
    BAD_PE,
    BAD_QP,
    BAD_STRIDE,
    ELSEWHERE,
    EMPTY,
    ENDED,
    FAULTS,
    GIVEN,
    MISMATCH,
    NO_ROOM,
    NOT_ALLOCATED,
    NOT_NOW,
    NOT_SHARED,
    NOT_SYMMETRIC,
    OUTSIDE,
    TOO_SMALL,
    TWICE,
    UNALIGNED,
    UNREGISTERED,
    raised,
)
from gpushmem.diagnosis.arrays import Arrays
from gpushmem.errors import (
    CollectiveMismatch,
    KernelError,
    ShmemError,
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


# Failure code -> exception class, and the message with the numbers recorded.
TRAPS = FAULTS | {
    MISMATCH: (CollectiveMismatch, mismatch),
    ELSEWHERE: (CollectiveMismatch, elsewhere),
    ENDED: (
        CollectiveMismatch,
        f"waits for PE {{0}}, which ended without making this call. {ALIKE}",
    ),
    TWICE: (CollectiveMismatch, convergence.twice),
    GIVEN: (KernelError, convergence.given),
    NOT_NOW: (KernelError, convergence.not_now),
    OWED: (
        KernelError,
        "the block has ended without release_smem: let every thread call it before it returns",
    ),
    APART: (KernelError, convergence.apart),
    UNLIKE: (KernelError, convergence.unlike),
    LEFT: (KernelError, convergence.left),
}


NAMING = {TWICE, APART, UNLIKE, LEFT}  # their texts name the operation


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
    error = raised(*TRAPS[failure.code], where, *failure.values)
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
