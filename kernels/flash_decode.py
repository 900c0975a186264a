"""Attention of a few queries over keys that are cut along the sequence among PEs: one round trip.

Each PE has some of a sequence's keys and values, in pages of its cache, and attends to these alone.
What it gets for a row, an output and the logarithm of a sum of exponentials, goes to all others at
once, and each merges what all have sent:

    out_p = softmax(q K_p^T) V_p,   lse_p = log sum exp(q K_p^T)
    out   = sum over PEs p of  exp(lse_p - max) out_p  /  sum of exp(lse_p - max)

A *pair* is a sequence and a head of keys: the queries of all heads that share it are the rows of
one product of matrices with each tile of keys, so keys are read once. Where there are fewer pairs
than a GPU has blocks, blocks have *splits* of a pair's keys, and each sends what it has by itself:
a split is to the merge what a PE is.

    block        scores of some keys, online softmax, their values, ...      -> put, tell
    block        wait for who has parts of a pair, of all PEs, then merge it, ...

There are two methods. "tiles": a block multiplies a tile of keys at a time, by `gemm_block`, which
is BLAS's on CPUs. "lanes", for GPUs: warps have keys of their own, and all is done in registers
(`decode_lanes`); so memory is read once, 16 bytes a lane, and is what limits it.

What a PE sends, for n PEs, S splits, and q rows in all (batch queries heads) of D numbers:

    everywhere        (n - 1) S q (D + 4) float32, in (n - 1) pairs S messages
    split by heads    the same / n, for each PE gets the rows of its own heads

and a signal from each block to each other PE. A query sees the first keys of each PE, `lengths`
says how many: so keys may be cut into ranges, or dealt out page by page, and of several queries
(speculation) each sees those before it. Scores and sums are float32.

The rule of `plan` holds: in each call each PE tells each. Splitting keys is Flash-Decoding (Dao,
Haziza, Massa and Sizov, 2023), with the online softmax of Milakov and Gimelshein, 2018; over GPUs
it is the decode context parallelism of vLLM and Helix, and Triton-distributed's flash decode.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
from gpushmem.kernels.decode_lanes import (
    MOST_ROWS,
    NONE,
    PACK,
    PAD,
    WARP,
    attending,
    lanes_of,
    merge_rows,
)
from gpushmem.kernels.parts import begin, complete, end, member
from gpushmem.kernels.plan import SLOTS, Plan
from numba import cuda

import gpushmem as shmem
from gpushmem.checks import integer

__all__ = ["FlashDecode", "reference"]

TILE = 128  # keys
STATS = 4  # numbers of a row, of which the last is for alignment
METHODS = "tiles", "lanes"
FLOATS = "float32", "float16", "bfloat16"


@shmem.jit(device=True)
def lanes_of_row():
    """How many threads have a row: those of a warp, or one each."""
    return WARP if cuda.blockDim.x % WARP == 0 else 1


@shmem.jit(device=True)
def load_tile(wide, small, rows, index, table, first, count, page_size, page_rows, heads, at):
    """Set `wide` (TILE, D) to rows of the cache: those of `count` keys from `first` on.

    `rows` (all of the cache, D); `at` is the row of token 0 of page 0 that is of this head. All
    threads see the rows, and what they wrote before.
    """
    for k in range(cuda.threadIdx.x, count, cuda.blockDim.x):
        token = first + k
        index[k] = table[token // page_size] * page_rows + token % page_size * heads + at
    cuda.syncthreads()
    shmem.copy_rows_block(small[:count], rows, index[:count])
    if small.itemsize < wide.itemsize:
        lanes = lanes_of_row()
        for k in range(cuda.threadIdx.x // lanes, count, cuda.blockDim.x // lanes):
            for i in range(cuda.threadIdx.x % lanes, wide.shape[1], lanes):
                wide[k, i] = np.float32(small[k, i])
        cuda.syncthreads()


@shmem.jit(device=True)
def weigh(work, dim, lengths, first, count, group):
    """Make weights of scores, relative to each row's largest so far, and scale sums to it.

    `work` (rows, ...) has of each row its sums, D numbers; its query, D; its scores, TILE; and
    STATS: the largest score so far, the sum of weights, and what sums are to be scaled by. Others
    see the sum of weights when the block has synchronised once more, as `load_tile` does.
    """
    rows, scores, stats = work.shape[0], 2 * dim, 2 * dim + TILE
    for r in range(cuda.threadIdx.x, rows, cuda.blockDim.x):
        seen, most = min(lengths[r // group] - first, count), work[r, stats]
        for k in range(seen):
            most = max(most, work[r, scores + k])
        scale = math.exp(work[r, stats] - most) if most > NONE else np.float32(1)
        work[r, stats], work[r, stats + 2] = most, scale
    cuda.syncthreads()
    lanes = lanes_of_row()
    for r in range(cuda.threadIdx.x // lanes, rows, cuda.blockDim.x // lanes):
        seen, most = lengths[r // group] - first, work[r, stats]
        for k in range(cuda.threadIdx.x % lanes, count, lanes):
            weight = np.float32(0)
            if k < seen:
                weight = np.float32(math.exp(work[r, scores + k] - most))
            work[r, scores + k] = weight
        for i in range(cuda.threadIdx.x % lanes, dim, lanes):
            work[r, i] *= work[r, stats + 2]
    cuda.syncthreads()
    for r in range(cuda.threadIdx.x, rows, cuda.blockDim.x):
        total = work[r, stats + 1] * work[r, stats + 2]
        for k in range(count):
            total += work[r, scores + k]
        work[r, stats + 1] = total


@shmem.jit(device=True)
def attend(work, dim, wide, small, index, rows, table, lengths, first, last, page_size, page_rows,
           heads, keys_at, values_at, group):  # fmt: skip
    """Attend to keys `first` to `last` (exclusive): sums and stats of `work` are set.

    All threads see them: what `load_tile` and `gemm_block` make, the whole block sees.
    """
    stats = 2 * dim + TILE
    for r in range(work.shape[0]):
        for i in range(cuda.threadIdx.x, dim, cuda.blockDim.x):
            work[r, i] = 0
    for r in range(cuda.threadIdx.x, work.shape[0], cuda.blockDim.x):
        work[r, stats], work[r, stats + 1] = NONE, 0
    cuda.syncthreads()
    for start in range(first, last, TILE):
        count = min(TILE, last - start)
        # Of one type, so that a block has the shared memory of one product: slices, all of them.
        tile, scores = wide[:count, :dim], work[:, 2 * dim : 2 * dim + count]
        for of_values in range(2):
            at = values_at if of_values else keys_at
            load_tile(wide, small, rows, index, table, start, count, page_size, page_rows, heads,
                      at)  # fmt: skip
            if of_values:
                shmem.gemm_block(work[:, :dim], scores, tile, True)
            else:
                shmem.gemm_block(scores, work[:, dim : 2 * dim], tile.T, False)
                weigh(work, dim, lengths, start, count, group)


@shmem.jit(device=True)
def attend_by_tiles(
    mine, work, wide, small, index, q, head, group, scale, rows, table, lengths, first, last,
    page_size, page_rows, heads, keys_at, values_at,
):  # fmt: skip
    """Set `mine` (rows, D + PAD) to what is sent of keys `first` to `last`; `work`: see `weigh`."""
    dim = q.shape[2]
    for r in range(work.shape[0]):
        query = q[r // group, head * group + r % group]
        for i in range(cuda.threadIdx.x, dim, cuda.blockDim.x):
            work[r, dim + i] = scale * np.float32(query[i])
    attend(
        work, dim, wide, small, index, rows, table, lengths, first, last, page_size, page_rows,
        heads, keys_at + head, values_at + head, group,
    )  # fmt: skip
    to_partial(mine, work, dim)
    cuda.syncthreads()


@shmem.jit(device=True)
def to_partial(mine, work, dim):
    """Set `mine` (rows, D + PAD) to what is sent of sums and stats; for the block, synchronise."""
    stats = 2 * dim + TILE
    for r in range(work.shape[0]):
        total = work[r, stats + 1]
        for i in range(cuda.threadIdx.x, dim, cuda.blockDim.x):
            mine[r, i] = work[r, i] / total if total > 0 else np.float32(0)
        if cuda.threadIdx.x == 0:
            mine[r, dim] = work[r, stats] + math.log(total) if total > 0 else NONE


@shmem.jit(device=True)
def merge(out, boxes, pair, splits, head, work, index, weights):
    """Merge what all PEs have sent of a pair; `boxes` as of `merge_rows`.

    `out` (queries, heads, D) gets the rows, from its head `head` on. For the block, synchronise.
    """
    rows, dim = boxes.shape[2], boxes.shape[3] - PAD
    merge_rows(work, boxes, pair, splits, index, weights)
    group = rows // out.shape[0]
    for r in range(rows):
        for i in range(cuda.threadIdx.x, dim, cuda.blockDim.x):
            out[r // group, head + r % group, i] = work[r, i]


@shmem.jit(device=True)
def owner_of(head, kv_heads, n):
    """Who gets a head of keys, where results are split: PE p those from p * kv_heads // n on."""
    return ((head + 1) * n - 1) // kv_heads


def decoding(attend: Any) -> Any:
    """The kernel that attends by a function: `attend_by_tiles`, or one of `attending`."""

    @shmem.jit(collective=True)
    def flash_decode(
        q, rows, tables, lengths, out, scale, page_size, page_rows, keys_at, values_at, kv_heads,
        splits, room, split_heads, works, wide, small, index, sent, parts, weights, inbox, arrived,
        team, epochs,
    ):  # fmt: skip
        """`q`, `out` (batch, queries, heads, D), `lengths` (batch, queries), `rows` (any, D).

        The last are those of the cache. Each block has its own of `works`, `wide`, `small` and
        `index` (see `attend`), of `parts` and `weights` (rows, n * splits). `sent` (items, rows, D
        + PAD) is what goes to `inbox` (SLOTS, n, items, rows, D + PAD), which has items of `room`
        heads, all or with `split_heads` as many as a PE gets; `arrived` (SLOTS, n, blocks).
        """
        me, n, epoch = shmem.team_my_pe(team), shmem.team_n_pes(team), begin(epochs)
        b, slot, t = cuda.blockIdx.x, epoch % SLOTS, cuda.threadIdx.x
        batch, n_queries, group = q.shape[0], q.shape[1], q.shape[2] // kv_heads
        for item in range(b, batch * kv_heads * splits, cuda.gridDim.x):
            pair, split = item // splits, item % splits
            sequence, head = pair // kv_heads, pair % kv_heads
            seen = lengths[sequence]
            keys = 0
            for i in range(n_queries):
                keys = max(keys, seen[i])
            share = (keys + splits * TILE - 1) // (splits * TILE) * TILE
            mine = sent[item]
            attend(
                mine, works[b], wide[b], small[b], index[b], q[sequence], head, group, scale, rows,
                tables[sequence], seen, split * share, min((split + 1) * share, keys), page_size,
                page_rows, kv_heads, keys_at, values_at,
            )  # fmt: skip
            whole = mine.reshape(mine.size)
            for k in range(1, n + 1):
                to = (me + k) % n
                if not split_heads or to == owner_of(head, kv_heads, n):
                    first = to * kv_heads // n if split_heads else 0
                    place = (sequence * room + head - first) * splits + split
                    box = inbox[slot, me, place].reshape(mine.size)
                    shmem.put_nbi_block(box, whole, member(team, to))
        cuda.syncthreads()
        if t < n:
            shmem.fence()
        for k in range(t, n, cuda.blockDim.x):
            to = member(team, (me + 1 + k) % n)
            shmem.signal_op(arrived[slot, me, b:], epoch, shmem.SIGNAL_SET, to)
        for k in range(t, n, cuda.blockDim.x):  # all blocks together hear from all: see `plan`
            shmem.signal_wait_until(arrived[slot, k, b:], shmem.CMP_EQ, epoch)
        first = me * kv_heads // n if split_heads else 0
        for pair in range(b, batch * kv_heads, cuda.gridDim.x):
            sequence, head = pair // kv_heads, pair % kv_heads
            if not split_heads or me == owner_of(head, kv_heads, n):
                for k in range(t, n * splits, cuda.blockDim.x):
                    at = (pair * splits + k % splits) % cuda.gridDim.x  # the block of an item
                    shmem.signal_wait_until(
                        arrived[slot, k // splits, at:], shmem.CMP_EQ, epoch
                    )  # fmt: skip
                cuda.syncthreads()
                merge(
                    out[sequence], inbox[slot], sequence * room + head - first, splits,
                    (head - first) * group, works[b], parts[b], weights[b],
                )  # fmt: skip
        complete()
        end(epochs)

    return flash_decode


by_tiles = decoding(attend_by_tiles)


@cache
def by_lanes(lanes: int, most: int, numbers: int) -> Any:
    """The kernel for keys of so many lanes, each with so many numbers, and rows of queries."""
    return decoding(attending(lanes, most, numbers))


class FlashDecode(Plan):
    """Attend to keys that are cut among PEs: `plan(q, cache, tables, lengths, out=out)`.

    `batch` sequences of `queries` new tokens; `heads` share `kv_heads` of `head_dim` numbers; all
    PEs have all of them. Each PE's `cache` has `pages` of `page_size` tokens: (pages, 2, page_size,
    kv_heads, head_dim), keys first, or with `apart` (2, pages, ...); a sequence has up to
    `most_pages` of them, by default all. With `split_heads` PE p of n gets the results of
    `local_heads` heads, from `first_head` on, otherwise all of all. float32, float16 or bfloat16;
    scores and sums are float32. `scale` is 1 / sqrt(head_dim) if not given. `method` is "tiles", or
    "lanes" for heads of 32 to 512 bytes, a power of two, and blocks of whole warps; by default
    "lanes" on GPUs where it can be. With it the cache begins at a multiple of 16 bytes.
    """

    fills = True

    def __init__(
        self, *, batch: int, heads: int, kv_heads: int, head_dim: int, pages: int, page_size: int,
        dtype: Any, queries: int = 1, most_pages: int | None = None, apart: bool = False,
        split_heads: bool = False, scale: float | None = None, splits: int | None = None,
        method: str | None = None, team: Any = shmem.TEAM_WORLD, blocks: int | None = None,
        threads: int | None = None,
    ) -> None:  # fmt: skip
        self.dtype = np.dtype(dtype)
        self.most_pages = pages if most_pages is None else most_pages
        self._check(
            batch=batch, heads=heads, kv_heads=kv_heads, head_dim=head_dim, pages=pages,
            page_size=page_size, queries=queries, most_pages=self.most_pages,
        )  # fmt: skip
        pairs, tiles = batch * kv_heads, -(-self.most_pages * page_size // TILE)
        self.one_thread = method != "lanes"
        super().__init__(team, blocks=blocks, threads=threads, parts=pairs * tiles)
        self.splits = max(1, min(tiles, self.blocks // pairs)) if splits is None else splits
        self.batch, self.queries, self.heads, self.head_dim = batch, queries, heads, head_dim
        self.kv_heads, self.page_size, self.apart = kv_heads, page_size, apart
        self.split_heads, group = split_heads, heads // kv_heads
        self.scale = float(np.float32(head_dim**-0.5 if scale is None else scale))
        first, last = 0, kv_heads
        if split_heads:
            first, last = (k * kv_heads // self.n_pes for k in (self.my_pe, self.my_pe + 1))
        self.first_head, self.local_heads = first * group, (last - first) * group
        half = page_size * kv_heads
        self._cache_shape = (2, pages) if apart else (pages, 2)
        self._rows = (half, 0, half * pages) if apart else (2 * half, 0, half)
        self._lanes = lanes_of(head_dim, self.dtype.itemsize) if self.threads % WARP == 0 else 0
        if method is None:
            method = METHODS[bool(self.tuning.multiprocessors) and self._lanes > 0]
        self.method = method
        if self.method not in METHODS or (self.method == "lanes" and not self._lanes):
            raise shmem.ArgumentError(
                f"FlashDecode: method is {self.method!r}, with heads of {head_dim} and "
                f"{self.threads} threads; it can be 'tiles', or 'lanes' for heads of 32 to 512 "
                f"bytes, a power of two, and {WARP} threads, or several times as many"
            )
        self._workspace = self._make_workspace(group * queries, pairs * self.splits)

    def _check(self, **sizes: int) -> None:
        for what, size in sizes.items():
            integer(f"FlashDecode: {what}", size, 1, 2**31 - 1)
        if sizes["heads"] % sizes["kv_heads"] or self.dtype.name not in FLOATS:
            raise shmem.ArgumentError(
                f"FlashDecode: {sizes['heads']} heads cannot share {sizes['kv_heads']} evenly, or "
                f"dtype is {self.dtype}, which must be one of {', '.join(FLOATS)}"
            )

    def _make_workspace(self, rows: int, items: int) -> tuple[Any, ...]:
        blocks, n, dim, f4 = self.blocks, self.n_pes, self.head_dim, "float32"

        def scratch(*shape: int, dtype: Any = f4) -> Any:
            return shmem.device_array((blocks, *shape), dtype)

        self._items, self._row = (items, rows), dim + PAD
        self._room = -(-self.kv_heads // n) if self.split_heads else self.kv_heads
        here = items // self.kv_heads * self._room
        if self.method == "lanes":
            most = 1 << min(rows - 1, MOST_ROWS - 1).bit_length()
            self._kernel = by_lanes(self._lanes, most, PACK // self.dtype.itemsize)
            warps = self.threads // WARP
            work, wide = scratch(warps * rows, dim + PAD), scratch(rows, warps)
            small, index = wide, scratch(rows, warps, dtype="int32")
        else:
            self._kernel = by_tiles
            work, wide = scratch(rows, 2 * dim + TILE + STATS), scratch(TILE, dim)
            small = wide if self.dtype.name == f4 else scratch(TILE, dim, dtype=self.dtype)
            index = scratch(TILE, dtype="int32")
        width = self._row
        sent = self.sendable(shmem.to_device(np.zeros((items, rows, width), f4)))
        parts = n * self.splits
        return (
            work, wide, small, index, sent, scratch(rows, parts, dtype="int32"),
            scratch(rows, parts), self.boxes(n, here, rows, width, dtype=f4),
            self.signals(n, blocks),
        )  # fmt: skip

    def __call__(
        self, q: Any, cache: Any, tables: Any, lengths: Any, *, out: Any, stream: Any = 0
    ) -> None:
        """Set `out` to the attention of `q` to all PEs' keys; asynchronous, in `stream`'s order.

        `q` (batch, queries, heads, head_dim), the same on all PEs; `out` the same shape, or with
        `split_heads` `local_heads`. `tables` (batch, most_pages) of int32 has the sequences' pages
        on this PE, `lengths` (batch, queries) of int32 how many of its keys there each query sees,
        the first ones: 0 too. Queries that see no key on any PE get zeros. Raises `ArgumentError`
        for other shapes or dtypes.
        """
        shape = self.batch, self.queries, self.heads, self.head_dim
        ahead = *self._cache_shape, self.page_size, self.kv_heads, self.head_dim
        self.expect("q", q, shape, self.dtype)
        self.expect("cache", cache, ahead, self.dtype)
        self.expect("tables", tables, (self.batch, self.most_pages), "int32")
        self.expect("lengths", lengths, (self.batch, self.queries), "int32")
        self.expect("out", out, (*shape[:2], self.local_heads, self.head_dim), self.dtype)
        page_rows, keys_at, values_at = self._rows
        self.launch(
            self._kernel, stream, q, self._as_rows(cache), tables, lengths, out,
            np.float32(self.scale), self.page_size, page_rows, keys_at, values_at, self.kv_heads,
            self.splits, self._room, self.split_heads, *self._workspace,
        )  # fmt: skip

    def _as_rows(self, cache: Any) -> Any:
        """All of a cache as rows of a head; the same object for the same array."""
        cache = self.on_device("cache", cache)
        if self._seen is None or self._seen[0] is not cache:
            self._seen = cache, cache.reshape(-1, self.head_dim)
        return self._seen[1]

    _seen: tuple[Any, Any] | None = None

    def sends(self) -> tuple[int, int]:
        """Bytes and messages that this PE sends in a call, its signals among them."""
        (items, rows), others = self._items, self.n_pes - 1
        if self.split_heads:  # of each head to one PE: those of this PE stay
            stay = self.local_heads * self.kv_heads // self.heads
            to_others = (self.kv_heads - stay) * self.batch * self.splits
        else:
            to_others = others * items
        return 4 * to_others * rows * self._row, to_others + others * self.blocks


def reference(
    q: np.ndarray[Any, Any], keys: np.ndarray[Any, Any], values: np.ndarray[Any, Any],
    visible: np.ndarray[Any, Any], scale: float | None = None,
) -> np.ndarray[Any, Any]:  # fmt: skip
    """Attention of one sequence, from all keys in one place, in float64.

    `q` (queries, heads, D), `keys` and `values` (keys, kv_heads, D), `visible` (queries, keys).
    """
    group, scale = q.shape[1] // keys.shape[1], q.shape[2] ** -0.5 if scale is None else scale
    k, v = (np.repeat(each, group, 1).astype(float) for each in (keys, values))
    scores = np.einsum("qhd,khd->hqk", q.astype(float), k) * scale
    largest = np.where(visible, scores, -np.inf).max(axis=2, keepdims=True, initial=-1e300)
    weights = np.where(visible, np.exp(np.minimum(scores - largest, 0)), 0)
    total = weights.sum(axis=2, keepdims=True)
    return np.einsum("hqk,khd->qhd", weights / np.where(total > 0, total, 1), v)
