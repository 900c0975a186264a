"""Attention of a few queries by the lanes of warps, for GPUs: 16 bytes of a key for each.

L lanes have a key together, E numbers of it each; a warp has 32 / L keys at a time. In a *turn* it
loads the keys and values of several such steps, all before the first is used:

    scores     each lane multiplies its part of a key by those of R rows of queries, in registers;
               lanes *fold* what they got: one gives its partner half of the rows, and adds what it
               gets for the others, until each has the score of one row, l of L that of l R // L
    softmax    online, each lane for its row; to the largest score of all keys of the turn
    values     lanes add their part of each value to the sums of R rows, in registers; weights come
               from who has them

So a warp waits for no other; at the end the block merges what its warps have, as PEs do. All is
float32 in registers, whatever travels. Tuples, not arrays: they are never in memory. Functions for
n of something are made of those for n / 2, since loops over tuples would put them there.

The splitting of keys is Flash-Decoding's; one warp for some keys, and partial sums that are folded
by shuffles, is how kernels for few queries work in vLLM and FlashInfer.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
from numba import cuda

import gpushmem as shmem

__all__ = [
    "MOST_ROWS", "NONE", "PACK", "PAD", "WARP", "attending", "chain", "each", "lanes_of",
    "merge_rows", "pairs",
]  # fmt: skip

PAD = 4  # float32 behind a row, of which the first is its lse
WARP, FULL = 32, 0xFFFFFFFF
PACK = 16  # bytes that a lane loads at once
MOST_ROWS, STEPS = 8, 4  # rows of queries, and keys of a lane in a turn, at most
NONE, ZERO, ONE = np.float32(-np.inf), np.float32(0), np.float32(1)


def lanes_of(head_dim: int, itemsize: int) -> int:
    """How many lanes have a key of so many numbers; 0 if they cannot."""
    lanes, rest = divmod(head_dim * itemsize, PACK)
    return lanes if lanes in (2, 4, 8, 16, 32) and not rest else 0


# --- tuples


def each(n: int, one: Any) -> Any:
    """The device function `(values, given, at)`: a tuple of `one(values[k], given, at + k)`."""
    if n == 1:

        @shmem.jit(device=True)
        def of_one(values, given, at):
            return (one(values[0], given, at),)

        return of_one
    half, few = n // 2, each(n // 2, one)

    @shmem.jit(device=True)
    def of_all(values, given, at):
        return few(values[:half], given, at) + few(values[half:], given, at + half)

    return of_all


def pairs(n: int, one: Any) -> Any:
    """The device function `(a, b, given)`: a tuple of `one(a[k], b[k], given)`."""
    if n == 1:

        @shmem.jit(device=True)
        def of_one(a, b, given):
            return (one(a[0], b[0], given),)

        return of_one
    half, few = n // 2, pairs(n // 2, one)

    @shmem.jit(device=True)
    def of_all(a, b, given):
        return few(a[:half], b[:half], given) + few(a[half:], b[half:], given)

    return of_all


def chain(n: int, one: Any) -> Any:
    """The device function `(a, b, so_far)`: `one(a[k], b[k], so_far)` for one k after the other."""
    if n == 1:

        @shmem.jit(device=True)
        def of_one(a, b, so_far):
            return one(a[0], b[0], so_far)

        return of_one
    half, few = n // 2, chain(n // 2, one)

    @shmem.jit(device=True)
    def of_all(a, b, so_far):
        return few(a[half:], b[half:], few(a[:half], b[:half], so_far))

    return of_all


@shmem.jit(device=True)
def times(a, b, factor):
    return np.float32(a) * factor


@shmem.jit(device=True)
def plus_product(a, b, so_far):
    return so_far + a * b


@shmem.jit(device=True)
def plus_times(a, b, factor):
    return a + np.float32(b) * factor


@shmem.jit(device=True)
def plus(a, b, so_far):
    return so_far + a


@shmem.jit(device=True)
def larger(a, b, so_far):
    return max(so_far, a)


@shmem.jit(device=True)
def either(a, b, first):
    return a if first else b


@shmem.jit(device=True)
def plus_partners(a, b, far):
    """`a` and what the lane so far away gives as `b`."""
    return a + cuda.shfl_xor_sync(FULL, b, far)


def folding(rows: int, far: int) -> Any:
    """The device function `(scores, lane)`: sums over 2 `far` lanes, each with one of the rows."""
    if far == 0:

        @shmem.jit(device=True)
        def done(scores, lane):
            return scores[0]

        return done
    half = max(1, rows // 2)
    further, choose, add = folding(half, far // 2), pairs(half, either), pairs(half, plus_partners)
    if rows == 1:

        @shmem.jit(device=True)
        def fold_one(scores, lane):
            return further(add(scores, scores, far), lane)

        return fold_one

    @shmem.jit(device=True)
    def fold(scores, lane):
        low, high, upper = scores[:half], scores[half:], lane & far
        return further(add(choose(high, low, upper), choose(low, high, upper), far), lane)

    return fold


# --- attention


@shmem.jit(device=True)
def lse_of(peak, total):
    """The logarithm of a sum of exponentials: `total`, relative to the largest."""
    return peak + np.float32(math.log(total)) if total > ZERO else NONE


@shmem.jit(device=True)
def merge_rows(to, boxes, pair, splits, index, weights):
    """Set `to` (rows, D and more) to what several have of a pair, and their lse behind it.

    `boxes` (n, pairs * splits, rows, D + PAD); `index` and `weights` (rows, n * splits) are
    scratch. Synchronises the block at the end.
    """
    n, items, rows, width = boxes.shape
    parts, dim = n * splits, width - PAD
    flat = boxes.reshape(n * items * rows, width)
    for r in range(cuda.threadIdx.x, rows, cuda.blockDim.x):
        most, total = NONE, ZERO
        for k in range(parts):
            row = (k // splits * items + pair * splits + k % splits) * rows + r
            index[r, k] = row
            most = max(most, flat[row, dim])
        for k in range(parts):
            weight = ZERO
            if most > NONE:
                weight = np.float32(math.exp(flat[index[r, k], dim] - most))
            weights[r, k] = weight
            total += weight
        for k in range(parts):
            weights[r, k] = weights[r, k] / total if total > ZERO else ZERO
        to[r, dim] = lse_of(most, total)
    cuda.syncthreads()
    warps = (cuda.blockDim.x + WARP - 1) // WARP
    for r in range(cuda.threadIdx.x // WARP, rows, warps):
        shmem.sum_rows_warp(to[r, :dim], flat[:, :dim], index[r, :parts], weights[r, :parts])
    cuda.syncthreads()


@shmem.jit(device=True)
def row_of(token, table, page_size, page_rows, heads):
    """Where a token's keys of head 0 are, in rows from those of page 0 on."""
    page = token // page_size
    return np.int32(table[page] * page_rows + (token - page * page_size) * heads)


@cache
def attending(lanes: int, most: int, numbers: int) -> Any:  # noqa: PLR0915
    """The device function that attends to keys, for rows of `lanes` times `numbers` numbers.

    It has up to `most` rows of queries in registers, a power of two.
    """
    rows, keys = min(most, lanes, MOST_ROWS), WARP // lanes
    steps, dim = min(STEPS, WARP // keys), lanes * numbers
    turn, spread = steps * keys, lanes // rows
    no_sums = ((ZERO,) * numbers,) * rows
    of_rows, of_steps, of_numbers = (tuple(range(n)) for n in (rows, steps, numbers))
    scaled, added = pairs(numbers, times), pairs(numbers, plus_times)
    multiplied, fold = chain(numbers, plus_product), folding(rows, lanes // 2)

    @shmem.jit(device=True)
    def number(k, given, at):
        row, first, scale = given
        return np.float32(row[first + at]) * scale

    all_numbers = each(numbers, number)

    @shmem.jit(device=True)
    def query(k, given, at):
        """A lane's part of a row, times the scale; behind the last row, of that."""
        q, head, group, first, scale, part = given
        r = min(first + at, q.shape[0] * group - 1)
        return all_numbers(of_numbers, (q[r // group, head + r % group], part, scale), 0)

    @shmem.jit(device=True)
    def place(k, given, at):
        """Where a lane's part of a step's key is, of whose token another lane knows the row."""
        here, which, part = given
        return np.int64(cuda.shfl_sync(FULL, here, at * keys + which // lanes)) * dim + part

    @shmem.jit(device=True)
    def loaded(place, given, at):
        cache, further = given
        return shmem.load_vector(cache, place + further, numbers)

    @shmem.jit(device=True)
    def product(row, key, at):
        return multiplied(row, key, ZERO)

    products = each(rows, product)

    @shmem.jit(device=True)
    def score(key, given, at):
        queries, lane, token, limit = given
        found = fold(products(queries, scaled(key, key, ONE), 0), lane)
        return found if token + at * keys < limit else NONE

    @shmem.jit(device=True)
    def weight(found, top, at):
        return np.float32(math.exp(found - top))

    @shmem.jit(device=True)
    def shrunk(row, given, at):
        shrink, first = given
        return scaled(row, row, cuda.shfl_sync(FULL, shrink, first + at * spread))

    @shmem.jit(device=True)
    def grown(row, given, at):
        value, mine, first = given
        return added(row, value, cuda.shfl_sync(FULL, mine, first + at * spread))

    grow = each(rows, grown)

    @shmem.jit(device=True)
    def value_added(value, mine, sums):
        lane = cuda.threadIdx.x % WARP
        return grow(sums, (scaled(value, value, ONE), mine, lane - lane % lanes), 0)

    joined = pairs(numbers, plus_partners)

    @shmem.jit(device=True)
    def over_keys(row, far, at):
        return joined(row, row, far)

    @shmem.jit(device=True)
    def number_kept(value, given, at):
        row, first = given
        row[first + at] = value
        return at

    keep_numbers = each(numbers, number_kept)

    @shmem.jit(device=True)
    def kept(row, given, at):
        work, first, part, most = given
        if at < most:
            keep_numbers(row, (work[first + at], part), 0)
        return at

    places_of, load = each(steps, place), each(steps, loaded)
    scores_of, weights_of = each(steps, score), each(steps, weight)
    queries_of, shrink_all, keep = each(rows, query), each(rows, shrunk), each(rows, kept)
    join_keys = each(rows, over_keys)
    largest, total_of, add_values = (chain(steps, f) for f in (larger, plus, value_added))

    @shmem.jit(device=True)
    def attend(
        work, q, head, group, scale, first_row, cache, table, lengths, first, last, page_size,
        page_rows, heads, keys_at, values_at,
    ):  # fmt: skip
        """Set `work` (warps rows, D + PAD): of some rows the results of warps, and their lse."""
        lane, warp = cuda.threadIdx.x % WARP, cuda.threadIdx.x // WARP
        warps, all_rows = cuda.blockDim.x // WARP, q.shape[0] * group
        of_key = lane % lanes
        mine, part = of_key // spread, of_key * numbers
        queries = queries_of(of_rows, (q, head * group, group, first_row, scale, part), 0)
        limit = lengths[min(first_row + mine, all_rows - 1) // group]
        sums, peak, total = no_sums, NONE, ZERO
        start = first + warp * turn
        if start < last:
            ahead = row_of(min(start + lane, last - 1), table, page_size, page_rows, heads)
            while start < last:
                places = places_of(of_steps, (ahead, lane, part), 0)
                ks = load(places, (cache, (keys_at + head) * dim), 0)
                vs = load(places, (cache, (values_at + head) * dim), 0)
                after = start + turn * warps
                ahead = row_of(min(after + lane, last - 1), table, page_size, page_rows, heads)
                scores = scores_of(ks, (queries, lane, start + lane // lanes, limit), 0)
                top, far = largest(scores, scores, peak), lanes
                while far < WARP:
                    top = max(top, cuda.shfl_xor_sync(FULL, top, far))
                    far *= 2
                to = top if top > NONE else ZERO
                shrink = np.float32(math.exp(peak - to))
                weights = weights_of(scores, to, 0)
                total = total_of(weights, weights, total * shrink)
                if cuda.any_sync(FULL, top > peak):
                    sums = shrink_all(sums, (shrink, lane - of_key), 0)
                sums, peak, start = add_values(vs, weights, sums), top, after
        far = lanes
        while far < WARP:
            sums = join_keys(sums, far, 0)
            total += cuda.shfl_xor_sync(FULL, total, far)
            far *= 2
        inverse = ONE / total if total > ZERO else ZERO
        sums = shrink_all(sums, (inverse, lane - of_key), 0)
        row, left = warp * all_rows + first_row, all_rows - first_row
        if lane < lanes:
            keep(sums, (work, row, part, left), 0)
            if mine < left:
                work[row + mine, dim] = lse_of(peak, total)

    @shmem.jit(device=True)
    def attend_to_all(
        mine, work, weights, small, index, q, head, group, scale, cache, table, lengths, first,
        last, page_size, page_rows, heads, keys_at, values_at,
    ):  # fmt: skip
        """Set `mine` (rows, D + PAD) to what is sent; `work` (warps rows, D + PAD) is scratch.

        So are `weights` and `index` (rows, warps).
        """
        for first_row in range(0, mine.shape[0], rows):
            attend(
                work, q, head, group, scale, first_row, cache, table, lengths, first, last,
                page_size, page_rows, heads, keys_at, values_at,
            )  # fmt: skip
        cuda.syncthreads()
        warps = cuda.blockDim.x // WARP
        merge_rows(
            mine, work.reshape(1, warps, mine.shape[0], work.shape[1]), 0, warps, index, weights
        )

    return attend_to_all
