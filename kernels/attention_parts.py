"""What attention over PEs is made of: who has which tokens, what they see, and a tile of softmax.

The tokens of all PEs are numbered by their *position* in the whole batch: sequences one behind the
other, of lengths that `cu_seqlens` tells. A PE has one chunk of tokens that follow each other, or
two that make causal attention equal work for all (*zig-zag*; 3 PEs):

    blocks     | PE 0          | PE 1          | PE 2          |
    zig-zag    | PE 0  | PE 1  | PE 2  | PE 2  | PE 1  | PE 0  |

The keys that a token sees follow each other: those of its sequence, not behind itself if attention
is causal, and at most a window away. So a mask is two numbers for each row of a tile, keys that no
row of it sees are not multiplied, and blocks that nobody further along the ring sees do not travel.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gpushmem.kernels.activations import exp32
from numba import cuda

import gpushmem as shmem

__all__ = [
    "LEAST", "ONE", "chunk_start", "clear", "exponentials", "first_keys", "keys_of", "multiply",
    "positions", "reach_of", "row_tile", "row_tiles", "sees", "soften", "starts", "widen",
]  # fmt: skip

LEAST = np.float32(-1e30)  # below all scores: the largest of none
ONE = np.float32(1)
LANES = 16  # numbers that are combined apart from each other, so that loops can be vectorised


def starts(each: int, pe: int, n: int, chunks: int) -> tuple[int, ...]:
    """Where the chunks of a PE begin, 1 or 2 of so many tokens each; as `chunk_start`."""
    return (each * pe, each * (2 * n - 1 - pe))[:chunks]


def positions(tokens: int, pe: int, n: int, chunks: int) -> np.ndarray[Any, Any]:
    """Where the `tokens` of a PE are in the whole batch, if each PE has so many chunks, 1 or 2."""
    each = tokens // chunks
    return np.concatenate([np.arange(s, s + each) for s in starts(each, pe, n, chunks)])


def first_keys(
    at: np.ndarray[Any, Any], cu_seqlens: Any, before: int, after: int
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """First and last (exclusive) of the keys that tokens at these positions see; as `keys_of`."""
    ends = np.asarray(cu_seqlens)
    total = int(ends[-1])
    k = np.minimum(np.searchsorted(ends, at, side="right"), len(ends) - 1)
    low, high = np.maximum(ends[k - 1], at - before), np.minimum(ends[k], at + after + 1)
    return np.where(at < total, low, total), np.where(at < total, high, total)


def sees(tokens: int, n: int, chunks: int, before: int, after: int) -> list[list[bool]]:
    """Whether a token of a PE, the first index, sees one of another's block, the second.

    In a batch of one sequence: of several, no token sees more.
    """
    each = tokens // chunks

    def one(me: int, source: int) -> bool:
        return each > 0 and any(
            mine - before < its + each and its < mine + each + after
            for mine in starts(each, me, n, chunks)
            for its in starts(each, source, n, chunks)
        )

    return [[one(me, source) for source in range(n)] for me in range(n)]


def reach_of(table: list[list[bool]]) -> list[int]:
    """How far the block of each PE travels along the ring: steps to the last who `sees` it."""
    n = len(table)
    steps = range(1, n)
    return [max((s for s in steps if table[(pe + s) % n][pe]), default=0) for pe in range(n)]


@shmem.jit(device=True)
def chunk_start(pe, c, n, each):
    """The position of the first token of chunk `c` of a PE, if chunks have so many tokens each."""
    return each * pe if c == 0 else each * (2 * n - 1 - pe)


@shmem.jit(device=True)
def keys_of(position, cu_seqlens, before, after):
    """First and last (exclusive) of the keys that a token sees, as positions; both never fall.

    `cu_seqlens` (sequences + 1,) begins with 0; what is behind its last number sees nothing.
    """
    low, high = 0, cu_seqlens.size - 1
    total = np.int64(cu_seqlens[high])
    if position >= total:
        return total, total
    while high - low > 1:
        middle = (low + high) // 2
        if cu_seqlens[middle] <= position:
            low = middle
        else:
            high = middle
    first, last = np.int64(cu_seqlens[low]), np.int64(cu_seqlens[high])
    return max(first, position - before), min(last, position + after + 1)


@shmem.jit(device=True)
def largest(row, value):
    """The largest of `value` and the elements of a row."""
    lanes, even = cuda.local.array(LANES, np.float32), row.size // LANES * LANES
    for k in range(LANES):
        lanes[k] = value
    for j in range(0, even, LANES):
        for k in range(LANES):
            lanes[k] = max(lanes[k], row[j + k])
    for j in range(even, row.size):
        value = max(value, row[j])
    for k in range(LANES):
        value = max(value, lanes[k])
    return value


@shmem.jit(device=True)
def sum_of(row):
    """The sum of the elements of a row."""
    lanes, even = cuda.local.array(LANES, np.float32), row.size // LANES * LANES
    value = np.float32(0)
    for k in range(LANES):
        lanes[k] = np.float32(0)
    for j in range(0, even, LANES):
        for k in range(LANES):
            lanes[k] += row[j + k]
    for j in range(even, row.size):
        value += row[j]
    for k in range(LANES):
        value += lanes[k]
    return value


@shmem.jit(device=True)
def clear(row):
    """Set the elements of a row to 0."""
    for j in range(row.size):
        row[j] = np.float32(0)


@shmem.jit(device=True)
def widen(wide, rows, factor):
    """Set the first rows of `wide` to these times a float32; a thread has rows of its own."""
    for i in range(cuda.threadIdx.x, rows.shape[0], cuda.blockDim.x):
        to, row = wide[i], rows[i]
        for j in range(row.size):
            to[j] = row[j] * factor


@shmem.jit(device=True)
def multiply(dst, a, b, accumulate):
    """As `gemm_block`, of arrays of one type: so there is one product, with its shared memory."""
    (m, n), k = dst.shape, b.shape[0]
    shmem.gemm_block(dst[:m, :n], a[:m, :k], b[:k, :n], accumulate)


@shmem.jit(device=True)
def row_tiles(tokens, chunks, rows):
    """How many tiles of at most so many rows a PE's tokens make; none is of two chunks."""
    return chunks * ((tokens // chunks + rows - 1) // rows)


@shmem.jit(device=True)
def row_tile(k, tokens, chunks, rows, pe, n):
    """First and last (exclusive) row of tile `k` of a PE, and the position of the first."""
    each = tokens // chunks
    tiles = (each + rows - 1) // rows
    c, top = k // tiles, k % tiles * rows
    first = c * each + top
    return first, first + min(rows, each - top), chunk_start(pe, c, n, each) + top


@shmem.jit(device=True)
def seen_of(position, key, width, cu_seqlens, before, after):
    """First and last (exclusive) of the `width` keys from `key` on that a token sees."""
    low, high = keys_of(position, cu_seqlens, before, after)
    first = min(max(low - key, 0), width)
    return first, min(max(high - key, first), width)


@shmem.jit(device=True)
def soften(scores, position, key, cu_seqlens, before, after, peak, total, sums):
    """Replace scores by exponentials, and take what is summed so far down to the same peak.

    `scores` (rows, keys) of the tokens from `position` on and the keys from `key` on; `peak`,
    `total` (rows,) and `sums` (rows, D) are these rows' largest score, sum of exponentials, and
    sum of values. What a token does not see gets 0. A thread has rows of its own.
    """
    for i in range(cuda.threadIdx.x, scores.shape[0], cuda.blockDim.x):
        first, last = seen_of(
            position + i, key, scores.shape[1], cu_seqlens, before, after
        )  # fmt: skip
        row, seen = scores[i], scores[i, first:last]
        clear(row[:first])
        clear(row[last:])
        top = largest(seen, peak[i])
        for j in range(seen.size):
            seen[j] = exp32(seen[j] - top)
        shrunk = exp32(peak[i] - top)
        total[i] = total[i] * shrunk + sum_of(seen)
        peak[i] = top
        if shrunk < np.float32(1):
            to = sums[i]
            for j in range(to.size):
                to[j] *= shrunk


@shmem.jit(device=True)
def exponentials(scores, position, key, cu_seqlens, before, after, lse):
    """Replace scores by exp(score - lse), the weights of values; else as `soften`."""
    for i in range(cuda.threadIdx.x, scores.shape[0], cuda.blockDim.x):
        first, last = seen_of(
            position + i, key, scores.shape[1], cu_seqlens, before, after
        )  # fmt: skip
        row, seen, less = scores[i], scores[i, first:last], lse[i]
        clear(row[:first])
        clear(row[last:])
        for j in range(seen.size):
            seen[j] = exp32(seen[j] - less)
