"""`reduce_rows` and the like in kernels: elements of several places, combined; `copy`."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from numba import types
from numba.core import cgutils

from gpushmem.backends.codegen import contiguous
from gpushmem.backends.cpu.operations.access import (
    address_of,
    array_at,
    as_world,
    copy_one,
    itemsize_of,
    load_element,
    remote,
    size_of,
)
from gpushmem.backends.cpu.operations.blas import in_rows
from gpushmem.backends.cpu.operations.collectives import on_member, team_at
from gpushmem.backends.cpu.sync.barrier import as_team
from gpushmem.backends.operation_errors import EMPTY, NOT_BY_ROWS, TOO_SMALL
from gpushmem.backends.reductions import COMBINE, SMALL, widened
from gpushmem.native.memory import copy_bytes, intrinsic
from gpushmem.ops.roles import SwitchReduction
from gpushmem.simt.functions import device, outlined
from gpushmem.simt.thread import fail_if, user_word

__all__ = ["CHUNK", "REDUCING", "a_chunk", "chunk_as_is", "copy", "loops_of", "reducing", "wide"]

CHUNK = 256  # elements: what they are combined to stays in the cache

wide = intrinsic(widened)


def copy(dst, src):
    n = size_of(src)
    fail_if(size_of(dst) < n, TOO_SMALL, size_of(dst), n, address_of(dst), address_of(src))
    copy_one(address_of(dst), address_of(src), n * itemsize_of(src))


def _chunk(dtype_of: Any, typingctx: Any, like: Any) -> Any:
    result = types.Array(dtype_of(like.dtype), 1, "C")

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        kind = context.get_data_type(result.dtype)
        memory = cgutils.alloca_once(builder, kind, size=CHUNK)
        address = builder.ptrtoint(memory, cgutils.intp_t)
        return contiguous(context, builder, result, address, [cgutils.intp_t(CHUNK)])

    return result(like), codegen


@intrinsic
def a_chunk(typingctx: Any, like: Any) -> Any:
    """Memory of this call for CHUNK elements, as wide as they are combined."""
    return _chunk(lambda dtype: types.float32 if dtype in SMALL else dtype, typingctx, like)


@intrinsic
def chunk_as_is(typingctx: Any, like: Any) -> Any:
    """Memory of this call for CHUNK elements."""
    return _chunk(lambda dtype: dtype, typingctx, like)


@device
def row_at(base, pitch, k):
    """Where row `k` of a matrix is."""
    return base + k * pitch


@device
def member_at(base, team, k):
    """Where something in memory of the calling PE's is on member `k` of a team."""
    return on_member(team, base, k)


@cache
def loops_of(op: str) -> tuple[Any, ...]:
    """The loops of a reduction: of two places, and of several: the first two, the next, the last.

    Each is a function of its own, of vector instructions.
    """
    combine = device(COMBINE[op])

    def both(like, to, first, second, count):
        out = array_at(like, to, count)
        a, b = array_at(like, first, count), array_at(like, second, count)
        for i in range(count):
            out[i] = combine(wide(a[i]), wide(b[i]))

    def before(like, to, second, count):
        out, b = array_at(like, to, count), array_at(like, second, count)
        for i in range(count):
            out[i] = combine(wide(out[i]), wide(b[i]))

    def after(like, to, first, count):
        out, a = array_at(like, to, count), array_at(like, first, count)
        for i in range(count):
            out[i] = combine(wide(a[i]), wide(out[i]))

    def begin(like, total, first, second, count):
        a, b = array_at(like, first, count), array_at(like, second, count)
        for i in range(count):
            total[i] = combine(wide(a[i]), wide(b[i]))

    def go_on(like, total, address, count):
        part = array_at(like, address, count)
        for i in range(count):
            total[i] = combine(total[i], wide(part[i]))

    def end(like, total, to, address, count):
        out, part = array_at(like, to, count), array_at(like, address, count)
        for i in range(count):
            out[i] = combine(total[i], wide(part[i]))

    # Those that have `to` once more as a source would not be: hence `before` and `after`.
    loops = both, before, after, begin, go_on, end
    return tuple(outlined(f, f"{__name__}.{f.__name__}({op})") for f in loops)


@cache
def _combining(op: str, place: Any) -> Any:
    """The device function that combines what is at `place(base, which, k)`, for k below `n`."""
    both, before, after, begin, go_on, end = loops_of(op)

    @device
    def several(dst, base, which, n, size):
        total, out = a_chunk(dst), address_of(dst)
        for first in range(0, size, CHUNK):
            count, at = min(CHUNK, size - first), first * itemsize_of(dst)
            begin(dst, total, place(base + at, which, 0), place(base + at, which, 1), count)
            for k in range(2, n - 1):
                go_on(dst, total, place(base + at, which, k), count)
            end(dst, total, out + at, place(base + at, which, n - 1), count)

    @device
    def two(dst, first, second, size):
        to = address_of(dst)
        if first == to:
            before(dst, to, second, size)
        elif second == to:
            after(dst, to, first, size)
        else:
            both(dst, to, first, second, size)

    @device
    def combined(dst, base, which, n, size):
        to = address_of(dst)
        if n == 1:
            copy_bytes(to, place(base, which, 0), size * itemsize_of(dst))
        elif n == 2:
            two(dst, place(base, which, 0), place(base, which, 1), size)
        else:
            several(dst, base, which, n, size)

    return combined


def _reduce_rows(op: str) -> Callable[..., Any]:
    combined = _combining(op, row_at)

    def reduce_rows(dst, src):
        n, size = src.shape
        pitch, step = src.strides
        fail_if(
            size_of(dst) < size, TOO_SMALL, size_of(dst), size, address_of(dst), address_of(src)
        )
        fail_if(n < 1, EMPTY, 0, 0, 0, 0)
        fail_if(not in_rows(src, size, step, n, pitch), NOT_BY_ROWS, pitch, step, 0, 0)
        combined(dst, address_of(src), pitch, n, size)

    return reduce_rows


def _reduce_local(op: str) -> Callable[..., Any]:
    combined = _combining(op, row_at)

    def reduce_local(dst, src):
        n, target, source = size_of(src), address_of(dst), address_of(src)
        fail_if(size_of(dst) < n, TOO_SMALL, size_of(dst), n, target, source)
        combined(dst, target, source - target, 2, n)

    return reduce_local


@device
def team_of(src, dst, team):
    """The team, when the arguments of `multimem_reduce` have been checked."""
    team, n = team_at(team), size_of(src)
    fail_if(size_of(dst) < n, TOO_SMALL, size_of(dst), n, address_of(dst), address_of(src))
    remote(address_of(src), n * itemsize_of(src), as_world(user_word()).my_pe)
    return team


def _multimem_reduce(op: str) -> Callable[..., Any]:
    combined = _combining(op, member_at)

    def multimem_reduce(dst, src, team):
        team = team_of(src, dst, team)
        combined(dst, address_of(src), team, as_team(team).n_pes, size_of(src))

    return multimem_reduce


def reducing(seen: Any, written: Any) -> dict[str, Callable[..., Any]]:
    """`multimem_reduce` for each value of `op`, element by element.

    `seen(address, nbytes)` is where an element is loaded from; `written` is told of the result.
    """
    return {op: _one_by_one(device(COMBINE[op]), seen, written) for op in SwitchReduction.names}


def _one_by_one(combine: Any, seen: Any, written: Any) -> Callable[..., Any]:
    def multimem_reduce(dst, src, team):
        team = team_of(src, dst, team)
        members, size, n = as_team(team).n_pes, itemsize_of(src), size_of(src)
        target, source = address_of(dst), address_of(src)
        out = array_at(dst, target, n)
        for i in range(n):
            place = source + i * size
            total = wide(load_element(src, seen(on_member(team, place, 0), size)))
            for rank in range(1, members):
                at = seen(on_member(team, place, rank), size)
                total = combine(total, wide(load_element(src, at)))
            out[i] = total
        written(target, n * size)

    return multimem_reduce


REDUCING = {
    make.__name__[1:]: {op: make(op) for op in SwitchReduction.names}
    for make in (_reduce_rows, _reduce_local, _multimem_reduce)
}
