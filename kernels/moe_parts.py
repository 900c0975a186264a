"""Parts of mixtures of experts: routing, sorting by expert, sending rows, adding up.

Device functions are called by all threads of a block; `moe_dispatch` tells how they work together.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gpushmem.kernels.parts import member, sum_before, tell
from numba import cuda

import gpushmem as shmem
from gpushmem.checks import dtype_name, shown, taking

__all__ = [
    "COUNT", "MASKS", "add_up", "experts_of", "receive_head", "route",
    "send_rows", "size_of", "sort_by_expert",
]  # fmt: skip

# A segment's head is one number: the first of its rows on the PE that sent it, and how many.
# In a signal it has a bit more, for 0 is no head.
COUNT, ARRIVED = 0xFFFFFFFF, 1 << 62
# Sorting is by bits of tokens in shared memory: words, of which each expert has one or more.
MASKS, BITS = 1024, 32


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
def mark(masks, experts, top_k, n_experts, first, last):
    """Set a bit of each expert for each token from `first` to `last` that names it.

    `masks` (words * n_experts,): token first + t is bit t % 32 of an expert's word t // 32. Returns
    how many words an expert has. Synchronises the block, before and after.
    """
    words = (last - first + BITS - 1) // BITS
    cuda.syncthreads()
    for k in range(cuda.threadIdx.x, words * n_experts, cuda.blockDim.x):
        masks[k] = 0
    cuda.syncthreads()
    for t in range(cuda.threadIdx.x, last - first, cuda.blockDim.x):
        place, bit = t // BITS * n_experts, np.uint32(1) << np.uint32(t % BITS)
        for i in range((first + t) * top_k, (first + t + 1) * top_k):
            if 0 <= experts[i] < n_experts:
                cuda.atomic.or_(masks, place + experts[i], bit)
    cuda.syncthreads()
    return words


@shmem.jit(device=True)
def start_rows(heads, low, high, capacity, dropped):
    """From how many name experts to where their rows start; a thread has those from low to high."""
    kept = lost = 0
    for e in range(low, high):
        kept += min(heads[e], capacity)
        lost += max(heads[e] - capacity, 0)
    sums = sum_before(lost << 32 | kept)
    if cuda.blockIdx.x == 0 and cuda.threadIdx.x == cuda.blockDim.x - 1:
        dropped[0] = (sums >> 32) + lost
    start = sums & COUNT
    for e in range(low, high):
        kept = min(heads[e], capacity)
        heads[e] = start << 32
        start += kept


@shmem.jit(device=True)
def sort_by_expert(experts, top_k, n_experts, capacity, heads, order, position, dropped):
    """Sort pairs by expert, in the order of their tokens: threads count bits of tokens together.

    `experts` (tokens * top_k,). Written: `heads` (n_experts or more,); `order` (pairs,), the token
    of each row sent; `position` (pairs,), the row of each pair, or -1; `dropped` (1,), by block 0.
    A token that names an expert again is sent to it once. Synchronises the block at the end.
    """
    masks = cuda.shared.array(MASKS, np.uint32)
    before = cuda.shared.array(MASKS, np.int32)  # tokens of an expert before those of a word
    tokens, step = experts.size // top_k, MASKS // n_experts * BITS
    share = (n_experts + cuda.blockDim.x - 1) // cuda.blockDim.x
    low = min(cuda.threadIdx.x * share, n_experts)
    high = min(low + share, n_experts)
    for e in range(low, high):
        heads[e] = 0
    for first in range(0, tokens, step):
        words = mark(masks, experts, top_k, n_experts, first, min(first + step, tokens))
        for e in range(low, high):
            for w in range(words):
                heads[e] += cuda.popc(masks[w * n_experts + e])
    start_rows(heads, low, high, capacity, dropped)
    for first in range(0, tokens, step):
        last = min(first + step, tokens)
        words = (last - first + BITS - 1) // BITS
        if step < tokens:
            words = mark(masks, experts, top_k, n_experts, first, last)
        for e in range(low, high):
            start, count = heads[e] >> 32 << 32, heads[e] & COUNT
            for w in range(words):
                before[w * n_experts + e] = count
                count += cuda.popc(masks[w * n_experts + e])
            heads[e] = start | min(count, capacity)
        cuda.syncthreads()
        for t in range(cuda.threadIdx.x, last - first, cuda.blockDim.x):
            place, bit = t // BITS * n_experts, np.uint32(1) << np.uint32(t % BITS)
            for i in range((first + t) * top_k, (first + t + 1) * top_k):
                e, row = experts[i], -1
                if 0 <= e < n_experts:
                    at = before[place + e] + cuda.popc(masks[place + e] & (bit - np.uint32(1)))
                    if at < capacity:
                        row = (heads[e] >> 32) + at
                        order[row] = first + t
                position[i] = row
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
def goal_of(k, n_experts, arrived, team):
    """The expert of segment `k` of those that this PE sends, and its PE, or -1: there is none.

    Each PE begins with the one behind it, and ends with its own experts.
    """
    n, share = arrived.shape
    e = (shmem.team_my_pe(team) + 1 + k // share) % n * share + k % share
    return e, member(team, e // share) if e < n_experts else -1


@shmem.jit(device=True)
def send_rows(x, n_experts, capacity, mine, order, inbox, arrived, near, team, at_once):
    """Put the rows of each expert to their places, then its head as a signal.

    `x` (t, row), `inbox` (L n capacity, row), `arrived` (n, L) of L experts a PE. A block has
    experts of its own; if all members are `near`, its warps have rows of their own. It tells of
    each expert `at_once`, after a fence; or of all at the end, after one, with a thread for each.
    """
    me, (n, share), first = shmem.team_my_pe(team), arrived.shape, cuda.blockIdx.x
    for k in range(first, n * share, cuda.gridDim.x):
        e, pe = goal_of(k, n_experts, arrived, team)
        if pe < 0:
            continue
        head, local = mine[e], e % share
        start, place = head >> 32, (local * n + me) * capacity
        count = head & COUNT
        if near:
            there = shmem.peer_array(inbox, pe)[place : place + count]
            shmem.copy_rows_block(there, x, order[start : start + count])
        else:
            for r in range(count):
                shmem.put_nbi_block(inbox[place + r], x[order[start + r]], pe)
        if at_once:
            tell(arrived[me, local:], ARRIVED | head, pe)
    if not at_once:
        cuda.syncthreads()
        first += cuda.threadIdx.x * cuda.gridDim.x
        if first < n * share:
            shmem.fence()
        for k in range(first, n * share, cuda.blockDim.x * cuda.gridDim.x):
            e, pe = goal_of(k, n_experts, arrived, team)
            if pe >= 0:
                signal = arrived[me, e % share :]
                shmem.signal_op(signal, ARRIVED | mine[e], shmem.SIGNAL_SET, pe)


@shmem.jit(device=True)
def receive_head(arrived, heads, source, local):
    """Wait until a segment is there, and return its head; one thread calls.

    The signal is 0 again before whoever sets it next hears of this PE: see `moe_dispatch`.
    """
    value = shmem.signal_wait_until(arrived[source, local:], shmem.CMP_NE, 0)
    arrived[source, local] = 0
    heads[source, local] = head = np.int64(value) - ARRIVED
    return head


@shmem.jit(device=True)
def add_up(out, weights, returned, position):
    """Set each token's row of `out` (t, H) to its weighted rows' sum, in the order of its choices.

    `weights` (t, top_k), `returned` (rows, H), `position` (t * top_k,): -1 counts as zeros.
    """
    top_k = weights.shape[1]
    for t in range(cuda.blockIdx.x, out.shape[0], cuda.gridDim.x):
        here = position[t * top_k : (t + 1) * top_k]
        shmem.sum_rows_block(out[t], returned, here, weights[t])


# exp(x) = 2^k exp(r), |r| <= log(2) / 2; log(2) in two parts, of which k times the first is exact.
