"""Sum up rows of a table that is cut among PEs, by rows and by columns: embedding bags.

    table, 2 x 3 PEs           PE 3 r + c has rows r and columns c of it:
      0 | 1 | 2                bag {7, 12} of PE 4, with 10 rows in all and 5 in each part:
      --+---+--                    row 7 is in parts 3, 4, 5; nobody has 12, so it is not there
      3 | 4 | 5                its result: the first columns from 0 and 3, then from 1 and 4, ...

A bag is some numbers of rows; its result is the sum, or the mean, of these rows. Each PE has bags
of its own, sends their numbers to all PEs, and each of these adds up what it has of each bag, some
columns, and sends that back, zeros too. Then the parts of a result with the same columns are added
in the order of the PEs.

    block    put numbers of its bags -> take others' as they come, sum up, put back -> add what came

What a PE sends, for n PEs, b bags of up to L numbers, C columns of a PE of S bytes each, B blocks:

    bytes       (n - 1) b (4 L + C S)
    messages    2 (n - 1) B

**Order.** Numbers and sums have signals of their own, behind them. In each call each PE sends
numbers to all, so the rule of `plan` holds for those; sums go to who has sent numbers in the same
call, and has finished the one before. A block has the same bags on all PEs, so blocks of a PE do
not wait for each other.

Tables that are cut in both ways are those of Mudigere et al., "Software-hardware co-design for fast
and scalable training of deep learning recommendation models", ISCA 2022 (TorchRec).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gpushmem.kernels.embedding_lanes import WEIGHTS, WORD, by_lanes
from gpushmem.kernels.parts import begin, end, member, send, share_of, tell_others, wait_for
from gpushmem.kernels.plan import SLOTS, Plan
from numba import cuda

import gpushmem as shmem
from gpushmem.checks import integer

__all__ = ["EmbeddingBags", "reference"]

WARP = 32
THREADS = 1024  # of a block on GPUs, by lanes: that many rows are under way


@shmem.jit(device=True)
def look_up(numbers, first, rows, mean, index, weights):
    """Set `index` (bags, L) to the numbers of a PE's own rows, from `first` on, -1 for others.

    `weights` (bags, L) are 1; for a `mean` they are set to one part of how many numbers there are.
    """
    t, threads, given = cuda.threadIdx.x, cuda.blockDim.x, numbers.reshape(numbers.size)
    found = index.reshape(index.size)
    for i in range(t, given.size, threads):
        row = np.int64(given[i]) - first
        found[i] = row if 0 <= row < rows else -1
    for k in range(t, numbers.shape[0] if mean else 0, threads):
        many = 0
        for i in range(numbers.shape[1]):
            many += numbers[k, i] >= 0
        for i in range(numbers.shape[1]):
            weights[k, i] = 1 / max(many, 1)
    cuda.syncthreads()


@shmem.jit(collective=True)
def embed(
    table, numbers, out, first_row, parts, mean, indices, all_weights, sums, asked, asking,
    answers, answering, near, team, epochs,
):  # fmt: skip
    """`table` (rows, C) of this PE, `numbers` (bags, L), `out` (bags, columns of all).

    Each block has its own of `indices` and `all_weights` (blocks, bags of a block, L). `sums`
    (n, bags, C); boxes `asked` (SLOTS, n, bags, L) and `answers` (SLOTS, n, bags, C), with signals
    `asking` and `answering` (SLOTS, blocks, n). Columns are cut in `parts`.
    """
    me, n, epoch = shmem.team_my_pe(team), shmem.team_n_pes(team), begin(epochs)
    b, slot, t = cuda.blockIdx.x, epoch % SLOTS, cuda.threadIdx.x
    first, last = share_of(numbers.shape[0], cuda.gridDim.x, b)
    mine, warps = numbers[first:last], (cuda.blockDim.x + WARP - 1) // WARP
    signal, back = asking[slot, b, me:], answering[slot, b, me:]
    for k in range(1, n):
        to = (me + k) % n
        box = asked[slot, me, first:last]
        send(box.reshape(box.size), mine.reshape(mine.size), signal, epoch, member(team, to), near)
    tell_others(signal, epoch, team, near)
    for k in range(n):
        source = (me + n - k) % n
        if k > 0:
            wait_for(asking[slot, b, source:], epoch)
        theirs = mine if k == 0 else asked[slot, source, first:last]
        index, weights = indices[b, : last - first], all_weights[b, : last - first]
        look_up(theirs, first_row, table.shape[0], mean, index, weights)
        made = answers[slot, me, first:last] if k == 0 else sums[source, first:last]
        for i in range(t // WARP, last - first, warps):
            shmem.sum_rows_warp(made[i], table, index[i], weights[i])
        cuda.syncthreads()
        if k > 0:
            box, pe = answers[slot, me, first:last], member(team, source)
            send(box.reshape(box.size), made.reshape(made.size), back, epoch, pe, near)
    tell_others(back, epoch, team, near)
    for k in range(1, n):
        wait_for(answering[slot, b, (me + k) % n :], epoch)
    for i in range(first + t // WARP, last, warps):
        for part in range(parts):
            start, stop = share_of(out.shape[1], parts, part)
            came = answers[slot, part::parts, i, : stop - start]
            shmem.reduce_rows_warp(out[i, start:stop], came, "sum")
    end(epochs)


def is_aligned(array: Any) -> bool:
    """Whether words of an array can be accessed at once."""
    given = getattr(array, "__cuda_array_interface__", None)
    return given is None or given["data"][0] % WORD == 0


class EmbeddingBags(Plan):
    """Sum up rows of a table that is cut among PEs: `plan(table, numbers, out=out)`.

    The table has `rows` of `dim` elements, float32, float64, float16 or bfloat16, and is cut in
    `column_parts`, n / column_parts parts of rows each: this PE has `plan.rows` and `plan.columns`,
    ranges. Each PE has `bags` of up to `most` numbers; their sums are divided by how many there are
    with `mean`. PyTorch: torch.nn.EmbeddingBag.
    """

    fills = one_thread = True

    def __init__(
        self, *, rows: int, dim: int, bags: int, most: int, dtype: Any, column_parts: int = 1,
        mean: bool = False, team: Any = shmem.TEAM_WORLD, blocks: int | None = None,
        threads: int | None = None,
    ) -> None:  # fmt: skip
        sizes = {"rows": rows, "dim": dim, "bags": bags, "most": most, "column_parts": column_parts}
        for what, size in sizes.items():
            integer(f"EmbeddingBags: {what}", size, 1, 2**31 - 1)
        self.team, self.dtype, on_gpus = team, np.dtype(dtype), bool(shmem.tuning().multiprocessors)
        words = dim * self.dtype.itemsize % (column_parts * WORD) == 0
        self._by_lanes = on_gpus and words and self.reachable
        if self._by_lanes and threads is None:
            threads = THREADS
        super().__init__(team, blocks=blocks, threads=threads, parts=bags)
        self.dim, self.bags, self.most = dim, bags, most
        n, parts, self.mean = self.n_pes, column_parts, mean
        if (self.team and n % parts) or dim < parts or self.dtype.name not in WEIGHTS:
            raise shmem.ArgumentError(
                f"EmbeddingBags: {dim} columns cannot be cut in {parts} parts over {n} PEs, or "
                f"dtype is {self.dtype}, which must be one of {', '.join(WEIGHTS)}"
            )
        self.column_parts = parts
        self.rows = range(*share_of(rows, max(1, n // parts), self.my_pe // parts))
        self.columns = range(*share_of(dim, parts, self.my_pe % parts))
        self._width = -(-dim // parts)
        self._workspace = self._make_workspace()

    def _make_workspace(self) -> tuple[Any, ...]:
        n, blocks, bags, wide = self.n_pes, self.blocks, self.bags, self._width
        scratch, dtype = (blocks, -(-bags // blocks), self.most), self.dtype
        sums = self.sendable(shmem.to_device(np.zeros((n, bags, wide), dtype)))
        return (
            self.rows.start, self.column_parts, self.mean, shmem.device_array(scratch, "int32"),
            shmem.to_device(np.ones(scratch, WEIGHTS[dtype.name])), sums,
            self.boxes(n, bags, self.most, dtype="int32"), self.signals(blocks, n),
            self.boxes(n, bags, wide, dtype=dtype), self.signals(blocks, n), self.reachable,
        )  # fmt: skip

    def __call__(self, table: Any, numbers: Any, *, out: Any, stream: Any = 0) -> None:
        """Set `out` to the sums of this PE's bags; asynchronous, in `stream`'s order.

        `table` (len(plan.rows), len(plan.columns)), `numbers` (bags, most) of int32, -1 for none;
        `out` (bags, dim). Numbers of rows that do not exist count in a mean, as zeros. Sums of
        float16 and bfloat16 are rounded on each PE that has some of the rows, and when they are
        added. Raises `ArgumentError` for other shapes or dtypes.
        """
        self.expect("table", table, (len(self.rows), len(self.columns)), self.dtype)
        self.expect("numbers", numbers, (self.bags, self.most), "int32")
        self.expect("out", out, (self.bags, self.dim), self.dtype)
        kernel = embed
        if self._by_lanes and self.threads % WARP == 0 and all(map(is_aligned, (table, out))):
            kernel = by_lanes(self.dtype.name)
        self.launch(kernel, stream, table, numbers, out, *self._workspace)

    def sends(self) -> tuple[int, int]:
        """Bytes and messages that this PE sends in a call."""
        others = self.n_pes - 1
        each = 4 * self.most + self._width * self.dtype.itemsize
        return others * self.bags * each, 2 * others * self.blocks


def reference(
    table: np.ndarray[Any, Any], numbers: np.ndarray[Any, Any], mean: bool = False
) -> np.ndarray[Any, Any]:
    """The sums of bags, or their means, from the whole table, in float64."""
    there = (numbers >= 0) & (numbers < len(table))
    rows = np.where(there[..., None], table[np.where(there, numbers, 0)].astype(float), 0)
    many = np.maximum((numbers >= 0).sum(axis=1, keepdims=True), 1)
    return rows.sum(axis=1) / (many if mean else 1)
