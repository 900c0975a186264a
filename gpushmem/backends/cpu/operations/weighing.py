"""`sum_rows` and `copy_rows` in kernels: rows of a matrix that an index names."""

from __future__ import annotations

from typing import Any

from numba import types

from gpushmem.backends.cpu.operations.access import (
    address_of,
    array_at,
    copy_one,
    itemsize_of,
    size_of,
)
from gpushmem.backends.cpu.operations.blas import in_rows
from gpushmem.backends.cpu.operations.combining import CHUNK, a_chunk, wide
from gpushmem.backends.operation_errors import (
    BAD_ROW,
    NO_WEIGHT,
    NOT_BY_ROWS,
    OTHER_ROWS,
    TOO_SMALL,
)
from gpushmem.backends.reductions import SMALL
from gpushmem.native.memory import intrinsic, prefetch_line
from gpushmem.simt.functions import device, outlined
from gpushmem.simt.thread import fail_if

__all__ = ["copy_rows", "copying_rows", "sum_rows"]


def copying_rows(copy: Any) -> Any:
    """The body of `copy_rows`, which calls `copy(target, source, nbytes)` for each row."""

    def copy_rows(dst, src, index):
        (rows, length), (n, size), (pitch, step) = dst.shape, src.shape, src.strides
        numbers, nbytes = size_of(index), size * itemsize_of(dst)
        fail_if(rows != numbers or length != size, OTHER_ROWS, rows, length, numbers, size)
        fail_if(n > 0 and not in_rows(src, size, step, n, pitch), NOT_BY_ROWS, pitch, step, 0, 0)
        for k in range(numbers):
            row = index[k]
            fail_if(not -1 <= row < n, BAD_ROW, row, n - 1, 0, 0)
            if row >= 0:
                copy(address_of(dst) + k * nbytes, address_of(src) + row * pitch, nbytes)

    return copy_rows


copy_rows = copying_rows(device(copy_one))


@intrinsic
def as_wide(typingctx: Any, like: Any, weight: Any) -> Any:
    """A weight, of the dtype that sums are kept in."""
    result = types.float32 if like.dtype in SMALL else like.dtype

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return context.cast(builder, args[1], weight, result)

    return result(like, weight), codegen


@device
def weight_of(like, weights, k):
    return as_wide(like, weights[k])


# Each a loop of its own, of vector instructions.


@outlined
def none(like, to, count):
    out = array_at(like, to, count)
    for i in range(count):
        out[i] = 0


@outlined
def one(like, to, a, by_a, count):
    out, first = array_at(like, to, count), array_at(like, a, count)
    for i in range(count):
        out[i] = by_a * wide(first[i])


@outlined
def two(like, to, a, by_a, b, by_b, count):
    out = array_at(like, to, count)
    first, second = array_at(like, a, count), array_at(like, b, count)
    for i in range(count):
        out[i] = by_a * wide(first[i]) + by_b * wide(second[i])


@outlined
def begin(like, total, a, by_a, b, by_b, count):
    first, second = array_at(like, a, count), array_at(like, b, count)
    for i in range(count):
        total[i] = by_a * wide(first[i]) + by_b * wide(second[i])


@outlined
def go_on(like, total, a, by_a, b, by_b, count):
    first, second = array_at(like, a, count), array_at(like, b, count)
    for i in range(count):
        total[i] = (total[i] + by_a * wide(first[i])) + by_b * wide(second[i])


@outlined
def end(like, to, total, a, by_a, count):
    out, first = array_at(like, to, count), array_at(like, a, count)
    for i in range(count):
        out[i] = total[i] + by_a * wide(first[i])


@outlined
def end_with_two(like, to, total, a, by_a, b, by_b, count):
    out = array_at(like, to, count)
    first, second = array_at(like, a, count), array_at(like, b, count)
    for i in range(count):
        out[i] = (total[i] + by_a * wide(first[i])) + by_b * wide(second[i])


@device
def following(index, k):
    """The first place from `k` on that has the number of a row."""
    while k < size_of(index) and index[k] < 0:
        k += 1
    return k


AHEAD = 8  # rows that are on their way from memory while others are added
LINE = 64


@device
def fetch(base, pitch, index, first, last, nbytes):
    """Begin to load the elements of the rows `index[first:last]`, or of those that there are."""
    for k in range(first, min(last, size_of(index))):
        row = base + index[k] * pitch
        for at in range(0, nbytes if index[k] >= 0 else 0, LINE):
            prefetch_line(row + at)


@device
def in_chunk(dst, total, to, base, pitch, index, weights, count):
    """So many elements from the addresses `to`, and `base` of row 0, on: two rows at a time."""
    n, some, nbytes = size_of(index), False, count * itemsize_of(dst)
    j = following(index, 0)
    fetch(base, pitch, index, j, j + AHEAD, nbytes)
    if j >= n:
        none(dst, to, count)
    while j < n:
        a, by_a = base + index[j] * pitch, weight_of(dst, weights, j)
        k = following(index, j + 1)
        if k >= n:
            if some:
                end(dst, to, total, a, by_a, count)
            else:
                one(dst, to, a, by_a, count)
            return
        b, by_b = base + index[k] * pitch, weight_of(dst, weights, k)
        last, j = j, following(index, k + 1)
        fetch(base, pitch, index, last + AHEAD, j + AHEAD, nbytes)
        if j < n:
            if some:
                go_on(dst, total, a, by_a, b, by_b, count)
            else:
                begin(dst, total, a, by_a, b, by_b, count)
        elif some:
            end_with_two(dst, to, total, a, by_a, b, by_b, count)
        else:
            two(dst, to, a, by_a, b, by_b, count)
        some = True


def sum_rows(dst, src, index, weights):
    n, size = src.shape
    pitch, step = src.strides
    fail_if(size_of(dst) < size, TOO_SMALL, size_of(dst), size, address_of(dst), address_of(src))
    fail_if(n > 0 and not in_rows(src, size, step, n, pitch), NOT_BY_ROWS, pitch, step, 0, 0)
    fail_if(size_of(weights) < size_of(index), NO_WEIGHT, size_of(index), size_of(weights), 0, 0)
    for k in range(size_of(index)):
        fail_if(not -1 <= index[k] < n, BAD_ROW, index[k], n - 1, 0, 0)
    total, item = a_chunk(dst), itemsize_of(dst)
    for first in range(0, size, CHUNK):
        to, base = address_of(dst) + first * item, address_of(src) + first * item
        in_chunk(dst, total, to, base, pitch, index, weights, min(CHUNK, size - first))
