"""All-reduce, residual and RMSNorm in one kernel: what follows every layer of a split transformer.

With the weights of a layer divided over PEs (tensor parallelism), each PE has a part of every
token's sum. Then come, for each token,

    residual = residual + sum over PEs of x
    out      = residual / sqrt(mean(residual^2) + eps) * weight

Done one after the other that is three launches, and four more passes through memory. Here a tile of
rows is added and normalised when its sums are there, while the others are under way:

    one shot    each PE    x, all tiles            --> every other PE: sum, add, normalise
    two shot    each PE    x, tiles of PE q's rows --> PE q: sum --> every other PE
                                                        |                |
                                                        +--- add, normalise, on all PEs

Every PE normalises all rows: that costs less than sending them. The sums of a row are made in the
order of the PEs' numbers, so all PEs have the same bits, in `residual` and in `out`.

What a PE sends for n PEs and S bytes of x: one shot (n - 1) S, two shot 2 (n - 1) S / n; messages:
one, or two, for each tile and other PE. It computes (n + 4) S / itemsize additions and products.

After the fused kernels of TensorRT-LLM and FlashInfer for tensor-parallel inference; RMSNorm is
that of Zhang and Sennrich, "Root mean square layer normalization", NeurIPS 2019.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gpushmem.kernels.all_reduce import suggested
from gpushmem.kernels.parts import (
    accumulate,
    begin,
    block_sum,
    end,
    member,
    rows_of,
    sum_in_order,
    wait_for,
)
from gpushmem.kernels.plan import SLOTS, Plan
from numba import cuda

import gpushmem as shmem

__all__ = ["AllReduceRMSNorm", "reference"]

LANES = 8  # neighbouring elements that a thread squares: independent sums, so that they vectorise
TILE_BYTES = 64 << 10


@shmem.jit(device=True)
def sum_of_squares(row):
    """Of the elements of one row, by all threads of the block, in float64."""
    t, threads = cuda.threadIdx.x, cuda.blockDim.x
    sums = cuda.local.array(LANES, np.float64)
    for j in range(LANES):
        sums[j] = 0.0
    whole = row.size // LANES * LANES
    for i in range(t * LANES, whole, threads * LANES):
        for j in range(LANES):
            value = np.float64(row[i + j])
            sums[j] += value * value
    for i in range(whole + t, row.size, threads):
        value = np.float64(row[i])
        sums[0] += value * value
    total = 0.0
    for j in range(LANES):
        total += sums[j]
    return block_sum(total)


@shmem.jit(device=True)
def finish(x, residual, weight, out, eps, factors, first, last):
    """Add and normalise rows whose sums are in `x`; `factors` (blocks,) says in what type."""
    for row in range(first, last):
        accumulate(residual[row], x[row])
        cuda.syncthreads()  # squares are summed by other threads than those that added
        mean = sum_of_squares(residual[row]) / x.shape[1]
        if cuda.threadIdx.x == 0:
            factors[cuda.blockIdx.x] = 1.0 / math.sqrt(mean + eps)
        cuda.syncthreads()
        factor, from_, to = factors[cuda.blockIdx.x], residual[row], out[row]
        for i in range(cuda.threadIdx.x, to.size, cuda.blockDim.x):
            to[i] = from_[i] * factor * weight[i]


@shmem.jit(device=True)
def tile_of(lower, upper, rows, tile):
    """First and last (exclusive) of the rows of a tile, perhaps none."""
    return min(lower + tile * rows, upper), min(lower + (tile + 1) * rows, upper)


@shmem.jit(collective=True, cache=True)
def one_shot_norm(
    x, residual, weight, out, eps, factors, rows, inbox, arrived, team, epochs
):  # fmt: skip
    """`inbox` (SLOTS, n, tokens, hidden), `arrived` (SLOTS, tiles, n)."""
    me, n, epoch = shmem.team_my_pe(team), shmem.team_n_pes(team), begin(epochs)
    slot, b, blocks = epoch % SLOTS, cuda.blockIdx.x, cuda.gridDim.x
    tokens, hidden = x.shape
    tiles = arrived.shape[1]
    flat, boxes = x.reshape(tokens * hidden), inbox[slot].reshape(n, tokens * hidden)
    for tile in range(b, tiles, blocks):
        first, last = tile_of(0, tokens, rows, tile)
        for k in range(1, n):
            box, signal = boxes[me][first * hidden : last * hidden], arrived[slot, tile, me:]
            mine = flat[first * hidden : last * hidden]
            pe = member(team, (me + k) % n)
            shmem.put_signal_block(box, mine, signal, epoch, shmem.SIGNAL_SET, pe)
    for tile in range(b, tiles, blocks):
        first, last = tile_of(0, tokens, rows, tile)
        for k in range(1, n):
            wait_for(arrived[slot, tile, (me + k) % n :], epoch)
        mine = flat[first * hidden : last * hidden]
        sum_in_order(mine, boxes, first * hidden, me, n)
        cuda.syncthreads()
        finish(x, residual, weight, out, eps, factors, first, last)
    end(epochs)


@shmem.jit(collective=True, cache=True)
def two_shot_norm(
    x, residual, weight, out, eps, factors, rows, inbox, arrived, sums, summed, team, epochs
):
    """`inbox` (SLOTS, n, part, hidden), `sums` (SLOTS, tokens, hidden), signals (SLOTS, tiles, n).

    Each PE's part of the rows has `tiles` tiles, so that even a PE without rows is heard of.
    """
    me, n, epoch = shmem.team_my_pe(team), shmem.team_n_pes(team), begin(epochs)
    slot, b, blocks = epoch % SLOTS, cuda.blockIdx.x, cuda.gridDim.x
    tokens, hidden = x.shape
    tiles, part = arrived.shape[1], inbox.shape[2]
    flat, boxes = x.reshape(tokens * hidden), inbox[slot].reshape(n, part * hidden)
    all_sums = sums[slot].reshape(tokens * hidden)
    for tile in range(b, tiles, blocks):  # mine to who sums them
        for k in range(1, n):
            to = (me + k) % n
            lower, upper = rows_of(tokens, n, to)
            first, last = tile_of(lower, upper, rows, tile)
            box = boxes[me][(first - lower) * hidden : (last - lower) * hidden]
            signal, outgoing = arrived[slot, tile, me:], flat[first * hidden : last * hidden]
            pe = member(team, to)
            shmem.put_signal_block(box, outgoing, signal, epoch, shmem.SIGNAL_SET, pe)
    lower, upper = rows_of(tokens, n, me)
    for tile in range(b, tiles, blocks):  # sum, and send what is summed
        first, last = tile_of(lower, upper, rows, tile)
        for k in range(1, n):
            wait_for(arrived[slot, tile, (me + k) % n :], epoch)
        mine = flat[first * hidden : last * hidden]
        sum_in_order(mine, boxes, (first - lower) * hidden, me, n)
        cuda.syncthreads()
        box, signal = all_sums[first * hidden : last * hidden], summed[slot, tile, me:]
        for k in range(1, n):
            pe = member(team, (me + k) % n)
            shmem.put_signal_block(box, mine, signal, epoch, shmem.SIGNAL_SET, pe)
        finish(x, residual, weight, out, eps, factors, first, last)
    for k in range(1, n):  # what the others have summed
        other = (me + k) % n
        lower, upper = rows_of(tokens, n, other)
        for tile in range(b, tiles, blocks):
            first, last = tile_of(lower, upper, rows, tile)
            wait_for(summed[slot, tile, other:], epoch)
            finish(sums[slot], residual, weight, out, eps, factors, first, last)
    end(epochs)


class AllReduceRMSNorm(Plan):
    """Sum x over a team, add the residual, normalise: `plan(x, residual, weight, out)`.

    `x`, `residual`, `out` (tokens, hidden) and `weight` (hidden,) are device arrays of `dtype`:
    float16, float32 or float64; `residual` and `weight` the same on all PEs. After the call
    `residual` and `out` are as in the module's formula, the same bits on every PE; `x` is used up.
    Numbers are added in their dtype; squares are summed in float64, rows scaled in float32 at
    least. `algorithm` is "one_shot" or "two_shot", by default what the size suggests.
    """

    def __init__(
        self, tokens: int, hidden: int, dtype: Any, team: Any = shmem.TEAM_WORLD, *,
        eps: float = 1e-6, algorithm: str | None = None, blocks: int | None = None,
        threads: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(team, blocks=blocks, threads=threads)
        self.shape, self.dtype, self.eps = (tokens, hidden), np.dtype(dtype), float(eps)
        nbytes, n = tokens * hidden * self.dtype.itemsize, self.n_pes
        self.algorithm = algorithm or suggested(nbytes, n)
        if self.algorithm not in ("one_shot", "two_shot"):
            raise shmem.ArgumentError(
                f"AllReduceRMSNorm: there is no algorithm {algorithm!r}; there are one_shot and "
                "two_shot"
            )
        two = self.algorithm == "two_shot"
        most = -(-tokens // n) if two else tokens  # rows of a PE's part
        rows = max(1, TILE_BYTES // max(1, hidden * self.dtype.itemsize))
        tiles = max(1, -(-most // rows))
        real = np.float64 if self.dtype == np.float64 else np.float32
        self._factors = shmem.device_array(self.blocks, real)
        workspace = [self.boxes(n, most, hidden, dtype=dtype), self.signals(tiles, n)]
        if two:
            workspace += [self.boxes(tokens, hidden, dtype=dtype), self.signals(tiles, n)]
        self._kernel = two_shot_norm if two else one_shot_norm
        self._workspace = self._factors, rows, *workspace

    def __call__(self, x: Any, residual: Any, weight: Any, out: Any, stream: Any = 0) -> None:
        """Do it, asynchronously, in `stream`'s order; raises `ArgumentError` for other shapes."""
        for what, array in (("x", x), ("residual", residual), ("out", out)):
            self.expect(what, array, self.shape, self.dtype)
        self.expect("weight", weight, self.shape[1:], self.dtype)
        self.launch(self._kernel, stream, x, residual, weight, out, self.eps, *self._workspace)

    def sends(self) -> tuple[int, int]:
        """Bytes and messages that a PE sends in a call, at most: the last parts may be smaller."""
        n, nbytes = self.n_pes, math.prod(self.shape) * self.dtype.itemsize
        tiles = self._workspace[3].shape[1]
        if self.algorithm == "one_shot":
            return (n - 1) * nbytes, (n - 1) * tiles
        return 2 * (n - 1) * -(-nbytes // n), 2 * (n - 1) * tiles


def reference(
    arrays: list[np.ndarray[Any, Any]], residual: Any, weight: Any, eps: float = 1e-6
) -> tuple[Any, Any]:
    """`residual` and `out` after the call, from all PEs' x."""
    residual = residual + np.sum(np.stack(arrays), axis=0, dtype=residual.dtype)
    wide = residual.astype(np.float64)
    factor = 1 / np.sqrt(np.mean(wide**2, axis=-1, keepdims=True) + eps)
    return residual, (wide * factor * weight).astype(residual.dtype)
