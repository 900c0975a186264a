"""Numbers as 8-bit floats on their way, with a scale for each 128: half the bytes of float16.

`size` numbers are sent as a *row* of bytes, scales first, so that one message has both:

    scales    float32, one for each GROUP of numbers, filled up to whole words of 16 bytes
    codes     float8_e4m3fn, one for each number

    scale = max|x| / 448 over the group,  code = x / scale, rounded to nearest even

448 is the largest code. What arrives, code * scale, differs from x by at most

    max(|x| / 16, max|x| / 458752)          and never by more than max|x| / 28

since e4m3 has 3 bits behind the first (half a unit is 1/16 of the number), numbers below 2**-6 are
multiples of 2**-9, and from 256 on half a unit is 16. Groups with nothing above 2**-100 arrive as
zeros. NaN arrives as NaN, infinity makes its whole group NaN.

All threads of a block call these; a warp has a group at a time. As the low-precision all-reduces of
TensorRT-LLM and FlashInfer; the format is that of Micikevicius and others, "FP8 formats for deep
learning", 2022.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numba import cuda

import gpushmem as shmem

__all__ = [
    "CODE", "GROUP", "bytes_of", "head_of", "quantise", "row_bytes", "sum_rows",
    "through_wire",
]  # fmt: skip

CODE = ml_dtypes.float8_e4m3fn
GROUP = 128  # numbers that have a scale
WORD = 16  # bytes
LARGEST, SMALLEST = np.float32(448), np.float32(2**-100)
WARP, FULL = 32, 0xFFFFFFFF


@shmem.jit(device=True)
def head_of(size):
    """How many bytes the scales of so many numbers have; also on the host."""
    return (4 * ((size + GROUP - 1) // GROUP) + WORD - 1) // WORD * WORD


@shmem.jit(device=True)
def bytes_of(size):
    """How many bytes a row of so many numbers has; also on the host."""
    return head_of(size) + size


def row_bytes(size: int) -> int:
    """How many bytes a box for a row of so many numbers has: rows in it are aligned."""
    return -(-bytes_of(size) // WORD) * WORD


@shmem.jit(device=True)
def quantise(row, x):
    """Set `row`, of `bytes_of(x.size)` of uint8 or more, to the numbers of `x`, of any floats."""
    head, t = head_of(x.size), cuda.threadIdx.x
    scales, codes = row[:head].view(np.float32), row[head:].view(CODE)
    lanes = WARP if cuda.blockDim.x % WARP == 0 else 1
    for group in range(t // lanes, (x.size + GROUP - 1) // GROUP, cuda.blockDim.x // lanes):
        first, last = group * GROUP, min((group + 1) * GROUP, x.size)
        largest, far = np.float32(0), lanes // 2
        for i in range(first + t % lanes, last, lanes):
            largest = max(largest, abs(np.float32(x[i])))
        while far > 0:
            largest = max(largest, cuda.shfl_xor_sync(FULL, largest, far))
            far //= 2
        inverse = LARGEST / largest if largest > SMALLEST else np.float32(0)
        for i in range(first + t % lanes, last, lanes):
            codes[i] = np.float32(x[i]) * inverse
        if t % lanes == 0:
            scales[group] = largest / LARGEST


@shmem.jit(device=True)
def sum_rows(x, rows):
    """Set `x` to the sum of what all of `rows` (n, bytes) stand for: in order, as float32.

    x's size counts. All who have the same rows end with the same bits.
    """
    head = head_of(x.size)
    for i in range(cuda.threadIdx.x, x.size, cuda.blockDim.x):
        total = np.float32(0)
        for k in range(rows.shape[0]):
            scales, codes = rows[k, :head].view(np.float32), rows[k, head:].view(CODE)
            total += np.float32(codes[i]) * scales[i // GROUP]
        x[i] = total


def through_wire(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """What arrives of an array of one axis, as float32."""
    wide = np.zeros((-(-x.size // GROUP), GROUP), np.float32)
    wide.reshape(-1)[: x.size] = x
    largest = np.fmax.reduce(np.abs(wide), axis=1, keepdims=True)
    inverse = np.where(largest > SMALLEST, LARGEST / np.maximum(largest, SMALLEST), np.float32(0))
    with np.errstate(invalid="ignore"):
        codes = (wide * inverse).astype(CODE).astype(np.float32)
        return (codes * (largest / LARGEST)).reshape(-1)[: x.size]
