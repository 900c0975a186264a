"""All-reduce, residual and RMSNorm in one kernel: what follows every layer of a split transformer.

With the weights of a layer divided over PEs (tensor parallelism), each PE has a part of every
token's sum. Then come, for each token,

    residual = residual + sum over PEs of x
    out      = residual / sqrt(mean(residual^2) + eps) * weight

Done one after the other that is three launches, and four more passes through memory. Here it is
done for a tile of rows at a time, which stays in the cache:

    PE p    tile 0:  x --> all-reduce --> x summed --> + residual --> norm --> out
            tile 1:  x --> all-reduce --> ...                  (other blocks: other tiles)

While one block waits for sums, others add and normalise. Every PE normalises all rows: that costs
less than sending them. How a tile is summed, what a PE sends for it, and why all PEs end with the
same bits in `residual` and `out`, is as in `all_reduce`; a tile is a piece. Beside the sums there
are some 5 operations for each element of x.

After the fused kernels of TensorRT-LLM and FlashInfer for tensor-parallel inference; RMSNorm is
that of Zhang and Sennrich, "Root mean square layer normalization", NeurIPS 2019.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gpushmem.kernels.all_reduce import SUMMING, suggested, traffic, workspace
from gpushmem.kernels.parts import begin, block_sum, block_sum32, end_at, fours_of
from gpushmem.kernels.pieces import most_in_piece
from gpushmem.kernels.plan import SLOTS, Plan
from numba import cuda

import gpushmem as shmem

__all__ = ["AllReduceRMSNorm", "reference"]


def plain_row_of(real: Any, block_sum: Any) -> tuple[Any, Any]:
    """What is done with a row, in numbers of type `real`: the sum of its squares, and scaling."""

    @shmem.jit(device=True)
    def square(value):
        wide = real(value)
        return wide * wide

    @shmem.jit(device=True)
    def sum_of_squares(row):
        """Of the elements of one row, to all threads of the block.

        A thread squares four neighbours at a time, for sums that do not wait for each other.
        """
        t, threads, fours = cuda.threadIdx.x, cuda.blockDim.x, row.size // 4
        a = b = c = d = real(0)
        for i in range(t, fours, threads):
            four = row[4 * i : 4 * i + 4]
            a += square(four[0])
            b += square(four[1])
            c += square(four[2])
            d += square(four[3])
        for i in range(4 * fours + t, row.size, threads):
            a += square(row[i])
        return block_sum((a + b) + (c + d))

    @shmem.jit(device=True)
    def scale(to, row, weight, factor):
        """Set `to` to a row times `factor` and `weight`."""
        for i in range(cuda.threadIdx.x, to.size, cuda.blockDim.x):
            to[i] = real(row[i]) * factor * real(weight[i])

    return sum_of_squares, scale


# For GPUs: by four elements of 2 or 4 bytes, two fours of each array under way in a thread.


@shmem.jit(device=True)
def square(value):
    return np.float32(value) * np.float32(value)


@shmem.jit(device=True)
def squares_by_four(row):
    """As `sum_of_squares`."""
    t, threads, fours = cuda.threadIdx.x, cuda.blockDim.x, fours_of(row)
    a = b = c = d = np.float32(0)
    for i in range(t, fours, 2 * threads):
        # The second may be the first once more, which does not count.
        j = min(i + threads, fours - 1)
        counts = np.float32(i + threads < fours)
        v, w = shmem.load_vector(row, 4 * i, 4), shmem.load_vector(row, 4 * j, 4)
        a += square(v[0]) + counts * square(w[0])
        b += square(v[1]) + counts * square(w[1])
        c += square(v[2]) + counts * square(w[2])
        d += square(v[3]) + counts * square(w[3])
    for i in range(4 * fours + t, row.size, threads):
        a += square(row[i])
    return block_sum32((a + b) + (c + d))


@shmem.jit(device=True)
def scaled(v, w, factor):
    return (
        np.float32(v[0]) * factor * np.float32(w[0]),
        np.float32(v[1]) * factor * np.float32(w[1]),
        np.float32(v[2]) * factor * np.float32(w[2]),
        np.float32(v[3]) * factor * np.float32(w[3]),
    )


@shmem.jit(device=True)
def scale_by_four(to, row, weight, factor):
    """As `scale`."""
    t, threads = cuda.threadIdx.x, cuda.blockDim.x
    fours = min(fours_of(to), fours_of(row), fours_of(weight))
    for i in range(t, fours, 2 * threads):
        j = min(i + threads, fours - 1)
        a, b = shmem.load_vector(row, 4 * i, 4), shmem.load_vector(row, 4 * j, 4)
        v, w = shmem.load_vector(weight, 4 * i, 4), shmem.load_vector(weight, 4 * j, 4)
        shmem.store_vector(to, 4 * i, scaled(a, v, factor))
        if i + threads < fours:
            shmem.store_vector(to, 4 * j, scaled(b, w, factor))
    for i in range(4 * fours + t, to.size, threads):
        to[i] = np.float32(row[i]) * factor * np.float32(weight[i])


def finish_for(real: Any, sum_of_squares: Any, scale: Any) -> Any:
    """The end of the kernel, whose sums of squares and factors are of type `real`."""

    @shmem.jit(device=True)
    def finish(x, residual, weight, out, eps, first, last):
        """Add and normalise rows whose sums are in `x`."""
        for k in range(first, last):
            row = residual[k]
            shmem.reduce_local_block(row, x[k], "sum")
            mean = sum_of_squares(row) / real(row.size)
            scale(out[k], row, weight, real(1) / math.sqrt(mean + real(eps)))

    return finish


BY_FOUR = "float32 by four"
FINISHES = {
    "float32": finish_for(np.float32, *plain_row_of(np.float32, block_sum32)),
    "float64": finish_for(np.float64, *plain_row_of(np.float64, block_sum)),
    BY_FOUR: finish_for(np.float32, squares_by_four, scale_by_four),
}


def kernel_for(sum_piece: Any, finish: Any) -> Any:
    """The kernel that sums by one of the algorithms of `all_reduce`."""

    @shmem.jit(collective=True)
    def all_reduce_norm(
        x, residual, weight, out, eps, rows, inbox, arrived, sums, summed, near, team, epochs,
    ):  # fmt: skip
        """Boxes as in `all_reduce`; tiles have `rows` rows, and are dealt out to the blocks."""
        epoch, b, (tokens, hidden) = begin(epochs), cuda.blockIdx.x, x.shape
        flat = x.reshape(tokens * hidden)
        for first in range(b * rows, tokens, cuda.gridDim.x * rows):
            last, s = min(first + rows, tokens), epoch % SLOTS
            mine = flat[first * hidden : last * hidden]
            boxes, signals, summed_ = inbox[s, b], arrived[s, b], summed[s, b]
            sum_piece(mine, boxes, signals, sums[s, b], summed_, near, team, epoch)
            finish(x, residual, weight, out, eps, first, last)
            epoch += 1
        end_at(epochs, epoch - 1)

    return all_reduce_norm


ALGORITHMS = {
    (name, real): kernel_for(sum_piece, finish)
    for name, sum_piece in SUMMING.items()
    for real, finish in FINISHES.items()
}


class AllReduceRMSNorm(Plan):
    """Sum x over a team, add the residual, normalise: `plan(x, residual, weight, out=out)`.

    `x`, `residual`, `out` (tokens, hidden) and `weight` (hidden,) are device arrays of `dtype`:
    float16, bfloat16, float32 or float64; `residual` and `weight` the same on all PEs. After the
    call `residual` and `out` are as in the module's formula, the same bits on every PE; `x` is used
    up. 16-bit floats are added as float32, and rounded once; squares are summed and rows scaled in
    float32, of float64 in float64. With T threads the sum of H squares is off by at most 2^-24 of
    it, H / 4T + T / 32 + 36 times, and must be less than 3e38. `algorithm` is as for `AllReduce`.
    """

    moves = fills = one_thread = True

    def __init__(
        self, *, tokens: int, hidden: int, dtype: Any, team: Any = shmem.TEAM_WORLD,
        eps: float = 1e-6, algorithm: str | None = None, blocks: int | None = None,
        threads: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(team, blocks=blocks, threads=threads, parts=tokens)
        if min(tokens, hidden) < 0:
            raise shmem.ArgumentError(
                f"{type(self).__name__}: tokens and hidden are {tokens} and {hidden}; they must be "
                "0 or more"
            )
        self.shape, self.dtype, self.eps = (tokens, hidden), np.dtype(dtype), float(eps)
        nbytes = tokens * hidden * self.dtype.itemsize
        self.algorithm = algorithm or suggested(self, nbytes)
        share = -(-tokens // self.blocks)
        self.rows = max(1, min(most_in_piece(self, dtype) // max(1, hidden), share))
        single = BY_FOUR if self.tuning.multiprocessors else "float32"
        self._real = "float64" if self.dtype == np.float64 else single
        self._workspace = workspace(self, self.algorithm, self.rows * max(1, hidden), dtype)

    def __call__(self, x: Any, residual: Any, weight: Any, *, out: Any, stream: Any = 0) -> None:
        """Do it, asynchronously, in `stream`'s order; raises `ArgumentError` for other shapes."""
        for what, array in (("x", x), ("residual", residual), ("out", out)):
            self.expect(what, array, self.shape, self.dtype)
        self.expect("weight", weight, self.shape[1:], self.dtype)
        kernel = ALGORITHMS[self.algorithm, self._real]
        given = x, residual, weight, out, self.eps, self.rows
        self.launch(kernel, stream, *given, *self._workspace)

    def sends(self) -> tuple[int, int]:
        """Bytes and messages that a PE sends in a call, at most: the last parts may be smaller."""
        nbytes, tiles = math.prod(self.shape) * self.dtype.itemsize, -(-self.shape[0] // self.rows)
        return traffic(self.algorithm, self.n_pes, nbytes, tiles)


def reference(
    arrays: list[np.ndarray[Any, Any]], residual: Any, weight: Any, eps: float = 1e-6
) -> tuple[Any, Any]:
    """`residual` and `out` after the call, from all PEs' x."""
    residual = residual + np.sum(np.stack(arrays), axis=0, dtype=residual.dtype)
    wide = residual.astype(np.float64)
    factor = 1 / np.sqrt(np.mean(wide**2, axis=-1, keepdims=True) + eps)
    return residual, (wide * factor * weight).astype(residual.dtype)
