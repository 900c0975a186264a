"""What mixtures of experts are made of: routing, sorting by expert, sending rows, adding up, int8.

Device functions are called by all threads of a block; `moe_dispatch` tells how they work together.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gpushmem.kernels.parts import member, tell
from numba import cuda

import gpushmem as shmem
from gpushmem.checks import dtype_name, shown, taking

__all__ = [
    "COUNT", "add_up", "experts_of", "quantise", "route", "send_rows", "size_of",
    "sort_by_expert", "through_int8", "wait_for_all", "widen", "wire_row",
]  # fmt: skip

# A segment's head is one number: the first of its rows on the PE that sent it, and how many.
COUNT = 0xFFFFFFFF


# --- which expert


@shmem.jit
def choose(logits, experts, weights):
    """`logits` (t, E), `experts` and `weights` (t, top_k); a thread has tokens of its own."""
    first = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    for t in range(first, logits.shape[0], cuda.gridDim.x * cuda.blockDim.x):
        row, total = logits[t], np.float32(0)
        for j in range(experts.shape[1]):
            best = -1
            for e in range(row.size):
                # After the last choice: smaller than it, or equal to it and further on.
                before = experts[t, j - 1] if j > 0 else -1
                follows = j == 0 or (
                    before >= 0 and (row[e] < row[before] or (row[e] == row[before] and e > before))
                )
                if follows and row[e] == row[e] and (best < 0 or row[e] > row[best]):
                    best = e
            experts[t, j] = best
            weights[t, j] = 0
            if best >= 0:
                weights[t, j] = math.exp(np.float32(row[best]) - np.float32(row[experts[t, 0]]))
            total += weights[t, j]
        for j in range(experts.shape[1]):
            if total > 0:
                weights[t, j] /= total


def route(logits: Any, *, experts: Any, weights: Any, stream: Any = 0) -> None:
    """Choose each token's experts: those of the largest logits, largest first; asynchronous.

    `logits` (t, E), of floats; `experts` (t, top_k) of int32 and `weights` (t, top_k) of float32
    are written. The weights are the softmax of the chosen logits: the same as the softmax of all,
    divided by the sum of those chosen. Of equal logits the first counts, NaN never: where fewer
    than `top_k` are left, the expert is -1 and the weight 0. A kernel without communication.
    """
    for what, array in (("logits", logits), ("experts", experts), ("weights", weights)):
        with taking(f"route: {what}"):
            shape = getattr(array, "shape", None)
        if not isinstance(shape, tuple) or len(shape) != 2:
            raise shmem.ArgumentError(
                f"route: {what} must be an array of 2 axes, not {shown(array)}"
            )
    t, top_k = experts.shape
    if logits.shape[0] != t or tuple(weights.shape) != (t, top_k) or top_k > logits.shape[1]:
        raise shmem.ArgumentError(
            f"route: logits {tuple(logits.shape)}, experts {(t, top_k)} and weights "
            f"{tuple(weights.shape)} do not fit: give (t, E), (t, top_k) and (t, top_k) with "
            "top_k <= E"
        )
    dtypes = dtype_name(experts.dtype), dtype_name(weights.dtype)
    if dtypes != ("int32", "float32"):
        raise shmem.ArgumentError(
            f"route: experts are of {dtypes[0]}, weights of {dtypes[1]}; they must be of "
            "int32 and float32"
        )
    threads = shmem.tuning().threads
    choose[max(1, min(t // threads, 1024)), threads, stream](logits, experts, weights)


# --- on both sides of a dispatch


@shmem.jit(device=True)
def named_before(experts, top_k, i):
    """The pair of the same token that has named the same expert first: `i`, or one before."""
    for k in range(i - i % top_k, i):
        if experts[k] == experts[i]:
            return k
    return i


@shmem.jit(device=True)
def sort_by_expert(experts, top_k, n_experts, capacity, heads, order, position, dropped):
    """Sort pairs by expert, by counting; a thread counts for experts of its own.

    `experts` (tokens * top_k,). Written: `heads` (n_experts or more,); `order` (pairs,), the pair
    of each row sent; `position` (pairs,), the row of each pair, or -1; `dropped` (1,), by block 0.
    A token that names an expert again is sent to it once. Synchronises the block at the end.
    """
    share = (n_experts + cuda.blockDim.x - 1) // cuda.blockDim.x
    low = min(cuda.threadIdx.x * share, n_experts)
    high = min(low + share, n_experts)
    for e in range(low, high):
        heads[e] = 0
    for i in range(cuda.threadIdx.x, experts.size, cuda.blockDim.x):
        known = 0 <= experts[i] < n_experts
        position[i] = named_before(experts, top_k, i) if known else -1
    cuda.syncthreads()
    for i in range(experts.size):
        if low <= experts[i] < high and position[i] == i:
            heads[experts[i]] += 1
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        start = lost = 0
        for e in range(n_experts):
            kept = min(heads[e], capacity)
            lost += heads[e] - kept
            heads[e] = start << 32
            start += kept
        if cuda.blockIdx.x == 0:
            dropped[0] = lost
    cuda.syncthreads()
    for i in range(experts.size):
        e = experts[i]
        if low <= e < high:
            head, first = heads[e], position[i]
            row = (head >> 32) + (head & COUNT)
            if first < i:
                position[i] = position[first]
            elif head & COUNT < capacity:
                order[row], position[i], heads[e] = i, row, head + 1
            else:
                position[i] = -1
    cuda.syncthreads()


@shmem.jit(device=True)
def experts_of(pe, n_experts, share):
    """How many experts live on a PE."""
    return max(0, min(share, n_experts - pe * share))


@shmem.jit(device=True)
def size_of(heads):
    """How many rows segments have together: those of one PE's experts, one behind the other."""
    total = 0
    for local in range(heads.size):
        total += heads[local] & COUNT
    return total


@shmem.jit(device=True)
def send_rows(x, top_k, n_experts, capacity, mine, order, inbox, heads, arrived, team, epoch):
    """Put the rows of each expert to their places; a block sends to experts of its own.

    `x` (t, row), `inbox` (L n capacity, row), `heads` and `arrived` (n, L) of L experts a PE.
    """
    me, n, share = shmem.team_my_pe(team), shmem.team_n_pes(team), arrived.shape[1]
    for k in range(cuda.blockIdx.x, n * share, cuda.gridDim.x):
        to, local = (me + 1 + k // share) % n, k % share
        if to * share + local >= n_experts:
            continue
        pe, head = member(team, to), mine[to * share + local]
        start, first = head >> 32, (local * n + me) * capacity
        for r in range(head & COUNT):
            shmem.put_nbi_block(inbox[first + r], x[order[start + r] // top_k], pe)
        if cuda.threadIdx.x == 0:
            shmem.p(heads[me, local:], head, pe)
        tell(arrived[me, local:], epoch, pe)


@shmem.jit(device=True)
def wait_for_all(signals, epoch):
    """Wait until all of `signals` are `epoch`; then all threads of the block see what came."""
    if cuda.threadIdx.x == 0:
        for k in range(signals.size):
            shmem.signal_wait_until(signals[k:], shmem.CMP_EQ, epoch)
    cuda.syncthreads()


@shmem.jit(device=True)
def add_up(out, weights, returned, position):
    """Set each token's row of `out` (t, H) to its weighted rows' sum, in the order of its choices.

    `weights` (t, top_k), `returned` (rows, H), `position` (t * top_k,): -1 counts as zeros.
    """
    top_k = weights.shape[1]
    for t in range(cuda.blockIdx.x, out.shape[0], cuda.gridDim.x):
        total, some = out[t], False
        for j in range(top_k):
            at, weight = position[t * top_k + j], weights[t, j]
            if at >= 0 and some:
                row = returned[at]
                for i in range(cuda.threadIdx.x, total.size, cuda.blockDim.x):
                    total[i] += weight * row[i]
            elif at >= 0:
                row, some = returned[at], True
                for i in range(cuda.threadIdx.x, total.size, cuda.blockDim.x):
                    total[i] = weight * row[i]
        if not some:
            for i in range(cuda.threadIdx.x, total.size, cuda.blockDim.x):
                total[i] = 0


# --- tokens as int8


@shmem.jit(collective=True, fastmath=True)
def quantise(x, stage, scales, largest, team, epochs):
    """`x` (t, H) to `stage` (t, row) of int8, with the scale in the last 4 bytes of each row.

    `scales` is `stage` as float32; `largest` (blocks, threads) is for the threads' maxima.
    """
    b = cuda.blockIdx.x
    for t in range(b, x.shape[0], cuda.gridDim.x):
        row, small = x[t], stage[t]
        found = np.float32(0)
        for i in range(cuda.threadIdx.x, row.size, cuda.blockDim.x):
            found = max(found, np.float32(abs(row[i])))
        largest[b, cuda.threadIdx.x] = found
        cuda.syncthreads()
        for k in range(cuda.blockDim.x):
            found = max(found, largest[b, k])
        inverse = np.float32(127) / found if found > 0 else np.float32(0)
        for i in range(cuda.threadIdx.x, row.size, cuda.blockDim.x):
            small[i] = np.int8(math.floor(np.float32(row[i]) * inverse + np.float32(0.5)))
        if cuda.threadIdx.x == 0:
            scales[t, scales.shape[1] - 1] = found / np.float32(127)
        cuda.syncthreads()


@shmem.jit(collective=True)
def widen(rows, received, scales, starts, counts, team, epochs):
    """The rows of all segments of `received` (rows, row) of int8 to `rows` (rows, H)."""
    b = cuda.blockIdx.x
    for local in range(counts.shape[0]):
        for source in range(counts.shape[1]):
            first = starts[b, local, source]
            for r in range(first + b, first + counts[local, source], cuda.gridDim.x):
                row, small, scale = rows[r], received[r], scales[r, scales.shape[1] - 1]
                for i in range(cuda.threadIdx.x, row.size, cuda.blockDim.x):
                    row[i] = scale * np.float32(small[i])


def wire_row(hidden: int) -> int:
    """Bytes of a token as int8 with its scale, which is aligned."""
    return -(-hidden // 4) * 4 + 4


def through_int8(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Tokens as they arrive with `wire="int8"`."""
    wide = x.astype("float32")
    largest = np.abs(wide).max(axis=1, keepdims=True)
    inverse = np.float32(127) / np.where(largest > 0, largest, np.float32(np.inf))
    steps = np.floor(wide * inverse + np.float32(0.5))
    return (steps * (largest / np.float32(127))).astype(x.dtype)
