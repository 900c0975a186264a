"""Numbers in 8 bits on their way, with a scale for each 128: half the bytes of float16.

`size` numbers are sent as a *row* of bytes, scales first, so that one message has both:

    scales    float32, one for each GROUP of numbers, filled up to whole words of 16 bytes
    codes     float8_e4m3fn or int8, one for each number, filled up in the same way

    scale = max|x| / 448 over the group, of int8 / 127;  code = x / scale, rounded to nearest even

What arrives, code * scale, differs from x by at most

    float8_e4m3    max(|x| / 16, max|x| / 458752)          and never by more than max|x| / 28
    int8           max|x| / 254

448 is the largest code of e4m3, which has 3 bits behind the first (half a unit is 1/16 of the
number); numbers below 2**-6 are multiples of 2**-9, and from 256 on half a unit is 16. Groups with
nothing above 2**-100 arrive as zeros; NaN or infinity makes its whole group NaN. Products are
rounded before they are added: so all backends have the same bits.

All threads of a block call the functions of a `Wire`. A thread loads and stores words of 16 bytes,
of UNIT numbers at a time; LANES threads have a group. Numbers of arrays that are not aligned, and
at ends, go one by one.

As the low-precision all-reduces of TensorRT-LLM and FlashInfer, and dispatch of DeepEP; the format
is that of Micikevicius and others, "FP8 formats for deep learning", 2022.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numba import cuda
from numba.cuda import libdevice

import gpushmem as shmem

__all__ = ["GROUP", "WIRES", "row_bytes"]

GROUP = 128  # numbers that have a scale
LANES, UNIT = 8, 16  # threads that have a group, and numbers that each of them has
WORD = 16  # bytes
SMALLEST = np.float32(2**-100)
WARP, FULL = 32, 0xFFFFFFFF


class Wire(NamedTuple):
    """Two device functions, and what NumPy says of them."""

    quantise: Any
    sum_rows: Any
    through: Any


@shmem.jit(device=True)
def head_of(size):
    """How many bytes the scales of so many numbers have; also on the host."""
    return (4 * ((size + GROUP - 1) // GROUP) + WORD - 1) // WORD * WORD


@shmem.jit(device=True)
def row_bytes(size):
    """How many bytes a row of so many numbers has: rows are aligned; also on the host."""
    return head_of(size) + (size + WORD - 1) // WORD * WORD


@shmem.jit(device=True)
def is_aligned(x):
    return x.ctypes.data % WORD == 0


# Numbers are in tuples, of UNIT or of a quarter of it: so they stay in registers.


@shmem.jit(device=True)
def magnitude(x):
    """The bits of |x|, which are in the order of the numbers; NaN is the largest."""
    return libdevice.float_as_int(abs(x))


@shmem.jit(device=True)
def largest_of(a):
    return max(magnitude(a[0]), magnitude(a[1]), magnitude(a[2]), magnitude(a[3]))


@shmem.jit(device=True)
def floats(a):
    return np.float32(a[0]), np.float32(a[1]), np.float32(a[2]), np.float32(a[3])


@shmem.jit(device=True)
def number(x, i):
    return np.float32(x[i]) if i < x.size else np.float32(0)


@shmem.jit(device=True)
def numbers(x, i):
    return number(x, i), number(x, i + 1), number(x, i + 2), number(x, i + 3)


@shmem.jit(device=True)
def take(x, i, aligned):
    """UNIT numbers of `x` from `i` on, as float32, and zeros behind its end."""
    if aligned and i + UNIT <= x.size:
        a = shmem.load_vector(x, i, UNIT)
        return floats(a[:4]) + floats(a[4:8]) + floats(a[8:12]) + floats(a[12:])
    return numbers(x, i) + numbers(x, i + 4) + numbers(x, i + 8) + numbers(x, i + 12)


@shmem.jit(device=True)
def give(x, i, a):
    """Set `x` from `i` on to numbers, up to its end."""
    if i < x.size:
        x[i] = a[0]
    if i + 1 < x.size:
        x[i + 1] = a[1]
    if i + 2 < x.size:
        x[i + 2] = a[2]
    if i + 3 < x.size:
        x[i + 3] = a[3]


@shmem.jit(device=True)
def plus(sums, a, scale):
    """Of products that are rounded first."""
    return (
        sums[0] + libdevice.fmul_rn(np.float32(a[0]), scale),
        sums[1] + libdevice.fmul_rn(np.float32(a[1]), scale),
        sums[2] + libdevice.fmul_rn(np.float32(a[2]), scale),
        sums[3] + libdevice.fmul_rn(np.float32(a[3]), scale),
    )


def arriving(code: Any, largest: np.float32, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """What arrives of rows, or of one, as float32."""
    *before, size = x.shape
    groups = -(-size // GROUP)
    wide = np.zeros((*before, groups, GROUP), np.float32)
    flat = wide.reshape(*before, groups * GROUP)[..., :size]
    flat[:] = x
    most = np.abs(wide).max(axis=-1, keepdims=True)
    with np.errstate(invalid="ignore"):
        inverse = np.where(most > SMALLEST, largest / np.maximum(most, SMALLEST), np.float32(0))
        codes = wide * inverse
        codes = (np.rint(codes) if code == np.int8 else codes).astype(code)
        wide[:] = codes.astype(np.float32) * (most / largest)
    return flat


def wire_of(code: Any, largest: np.float32, nearest: Any) -> Wire:
    """The wire with codes of a dtype; `nearest` rounds, if converting to it does not."""

    @shmem.jit(device=True)
    def coded(a, inverse):
        return (
            nearest(a[0] * inverse), nearest(a[1] * inverse), nearest(a[2] * inverse),
            nearest(a[3] * inverse),
        )  # fmt: skip

    @shmem.jit(device=True)
    def quantise(row, x):
        """Set `row`, of `row_bytes(x.size)` of uint8 or more, to the numbers of `x`, any floats.

        `row` is aligned to 16 bytes.
        """
        head, end, threads = head_of(x.size), row_bytes(x.size), cuda.blockDim.x
        scales, codes = row[:head].view(np.float32), row[head:end].view(code)
        groups, aligned, a = (x.size + GROUP - 1) // GROUP, is_aligned(x), numbers(x[:0], 0)
        b = c = d = a
        lanes = LANES if threads % WARP == 0 else 1
        lane, at_once = cuda.threadIdx.x % lanes, threads // lanes
        # A warp's threads go on as long as one of them has a group: they meet at the shuffle.
        all_groups = (groups + at_once - 1) // at_once * at_once
        for g in range(cuda.threadIdx.x // lanes, all_groups, at_once):
            bits, far = np.int32(0), lanes // 2
            first, last = g * GROUP + lane * UNIT, min((g + 1) * GROUP, x.size)
            for i in range(first, last, lanes * UNIT):
                v = take(x, i, aligned)
                a, b, c, d = v[:4], v[4:8], v[8:12], v[12:]
                bits = max(bits, largest_of(a), largest_of(b), largest_of(c), largest_of(d))
            while far > 0:
                bits = max(bits, cuda.shfl_xor_sync(FULL, bits, far))
                far //= 2
            most = libdevice.int_as_float(bits)
            inverse = largest / most if most > SMALLEST else np.float32(0)
            for i in range(first, last, lanes * UNIT):
                if lanes < LANES:  # else they are those
                    v = take(x, i, aligned)
                    a, b, c, d = v[:4], v[4:8], v[8:12], v[12:]
                made = coded(a, inverse) + coded(b, inverse) + coded(c, inverse) + coded(d, inverse)
                shmem.store_vector(codes, i, made)
            if lane == 0 and g < groups:
                scales[g] = most / largest

    @shmem.jit(device=True)
    def sum_rows(x, rows):
        """Set `x` to the sum of what all of `rows` (n, bytes) stand for: in order, as float32.

        x's size counts. All who have the same rows end with the same bits.
        """
        head, end, aligned = head_of(x.size), row_bytes(x.size), is_aligned(x)
        for i in range(cuda.threadIdx.x * UNIT, x.size, cuda.blockDim.x * UNIT):
            a = numbers(x[:0], 0)
            b = c = d = a
            for k in range(rows.shape[0]):
                scale = rows[k, :head].view(np.float32)[i // GROUP]
                v = shmem.load_vector(rows[k, head:end].view(code), i, UNIT)
                a, b = plus(a, v[:4], scale), plus(b, v[4:8], scale)
                c, d = plus(c, v[8:12], scale), plus(d, v[12:], scale)
            if aligned and i + UNIT <= x.size:
                shmem.store_vector(x, i, a + b + c + d)
            else:
                give(x, i, a)
                give(x, i + 4, b)
                give(x, i + 8, c)
                give(x, i + 12, d)

    return Wire(quantise, sum_rows, partial(arriving, code, largest))


@shmem.jit(device=True)
def as_it_is(x):
    return x


@shmem.jit(device=True)
def to_integer(x):
    return libdevice.rintf(x)


WIRES = {
    "int8": wire_of(np.int8, np.float32(127), to_integer),
    "float8_e4m3": wire_of(ml_dtypes.float8_e4m3fn, np.float32(448), as_it_is),
}
