"""A layer with a mixture of experts in one kernel: dispatch, the experts' networks, combine.

    y = sum over a token's experts e of weights[e] * (act(x @ w1[e]) @ w2[e])

    PE 0  send all tokens  | own    | PE 2's | PE 1's | own    | ...      | wait, add up
    PE 1  send all tokens  | own    | PE 0's | PE 2's | own    | ...      | wait, add up
                             expert 0 of this PE        expert 1
                             each computed when its signal has come, and sent back at once

Tokens travel as in the low latency form of `moe_dispatch`: rows to their places, a signal for each
segment (expert, source). A PE goes through its experts, and the sources of each from itself on
downwards, which is the order in which they send to it. Rows are gathered in a *tile* until it has
enough for a good product, or the expert's last source is in it; then it is multiplied by the
expert's matrices and its rows go back, with a signal for each segment that is done. What is in a
tile follows from the counts, not from who was fast, so results have the same bits each time. A PE
computes while rows of other segments are under way in both directions, and reads an expert's
matrices once for many small segments.

What a PE sends, for t tokens of H numbers of s bytes, if experts are chosen evenly; L experts a PE:

    bytes       2 t top_k (n - 1) / n H s
    messages    t top_k (n - 1) / n rows, and 2 (n - 1) L: signals there, segments back
    flops       4 t top_k H F

That is `method="kernel"`. With "library" the products are the vendor's, between kernels that wait
and send: see `moe_library`.

The layout is DeepEP's low-latency one; see `moe_dispatch`, also for why boxes are there only once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gpushmem.kernels.activations import ACTIVATIONS, activate
from gpushmem.kernels.moe_dispatch import Dispatch, Received
from gpushmem.kernels.moe_dispatch import reference as reference_around
from gpushmem.kernels.moe_library import LibraryLayer
from gpushmem.kernels.moe_parts import (
    COUNT,
    add_up,
    experts_of,
    receive_head,
    send_rows,
    sort_by_expert,
)
from gpushmem.kernels.parts import begin, complete, end, member, tell, wait_for_all
from numba import cuda

import gpushmem as shmem

__all__ = ["MoE", "expert_ffn", "reference"]


@shmem.jit(device=True)
def feed_forward(result, hidden, rows, w1, w2, silu):
    """Set `result` (m, H) to act(rows @ w1) @ w2; `hidden` (m, F). Synchronises the block.

    What the block wrote to `rows` before it has to be synchronised.
    """
    shmem.gemm_block(hidden, rows, w1, False)
    activate(hidden, silu)
    cuda.syncthreads()
    shmem.gemm_block(result, hidden, w2, False)


@shmem.jit(device=True)
def send_back(result, first, skip, last, heads, returned, back, team, epoch):
    """Send the rows of a tile to where they came from; tell of the segments that are done.

    The tile has rows of segments `first` to `last`, of the first from row `skip` on. Returns the
    first segment that is not done, and how many rows of it are.
    """
    me, n, share = shmem.team_my_pe(team), shmem.team_n_pes(team), heads.shape[1]
    at = 0
    for k in range(first, last + 1):
        local, source = k // n, (me + n - k % n) % n
        pe, head = member(team, source), heads[source, local]
        count = min((head & COUNT) - skip, result.shape[0] - at)
        if count > 0:
            to = (head >> 32) + skip
            shmem.put_block(returned[to : to + count], result[at : at + count], pe)
        at, skip = at + count, skip + count
        if skip < head & COUNT:
            return k, skip
        tell(back[me * share + local :], epoch, pe)
        skip = 0
    return last + 1, 0


@shmem.jit(collective=True)
def fused(
    x, experts, weights, out, w1, w2, silu, enough, n_experts, capacity, mine, order, position,
    dropped, heads, inbox, arrived, near, returned, back, tiles, hiddens, results, team, epochs,
):  # fmt: skip
    """`tiles` and `results` (blocks, rows, H), `hiddens` (blocks, rows, F); else `moe_dispatch`."""
    me, n, epoch = shmem.team_my_pe(team), shmem.team_n_pes(team), begin(epochs)
    b, blocks, share = cuda.blockIdx.x, cuda.gridDim.x, arrived.shape[1]
    top_k, tile, hidden, result = weights.shape[1], tiles[b], hiddens[b], results[b]
    sort_by_expert(experts, top_k, n_experts, capacity, mine[b], order[b], position[b], dropped)
    send_rows(x, n_experts, capacity, mine[b], order[b], inbox, arrived, near, team, True)
    segments = n * experts_of(me, n_experts, share)
    oldest, stop = segments * b // blocks, segments * (b + 1) // blocks
    filled = skip = 0
    for k in range(oldest, stop):
        local, source = k // n, (me + n - k % n) % n
        if cuda.threadIdx.x == 0:
            receive_head(arrived, heads, source, local)
        cuda.syncthreads()
        row, left = (local * n + source) * capacity, heads[source, local] & COUNT
        expert_ends, all_in = k % n == n - 1 or k == stop - 1, False
        while not all_in:
            take = min(left, tile.shape[0] - filled)
            shmem.copy_block(tile[filled : filled + take], inbox[row : row + take])
            row, left, filled = row + take, left - take, filled + take
            all_in = left == 0
            if not all_in or filled >= enough or expert_ends:  # if not all in, the tile is full
                if filled > 0:
                    feed_forward(
                        result[:filled], hidden[:filled], tile[:filled], w1[local], w2[local], silu
                    )
                oldest, skip = send_back(
                    result[:filled], oldest, skip, k, heads, returned, back, team, epoch
                )
                filled = 0
    wait_for_all(back[:n_experts], epoch)
    add_up(out, weights, returned, position[b])
    complete()
    end(epochs)


@shmem.jit
def over_segments(rows, starts, counts, w1, w2, y, silu, hiddens):
    """A block has experts of its own; segments that follow each other are multiplied together."""
    b, (experts, n) = cuda.blockIdx.x, counts.shape
    hidden, most = hiddens[b], hiddens.shape[1]
    for local in range(b, experts, cuda.gridDim.x):
        first = last = starts[local, 0]
        for source in range(n):
            last += counts[local, source]
            if source == n - 1 or starts[local, source + 1] != last:
                for r in range(first, last, most):
                    m = min(most, last - r)
                    feed_forward(
                        y[r : r + m], hidden[:m], rows[r : r + m], w1[local], w2[local], silu
                    )
                if source < n - 1:
                    first = last = starts[local, source + 1]


METHODS = "kernel", "library"
TILE, ENOUGH = 512, 256  # rows: what a tile has room for, and when it is worth multiplying


def expert_ffn(
    received: Received, w1: Any, w2: Any, *, out: Any, hidden: Any, activation: str = "silu",
    stream: Any = 0, threads: int = 1,
) -> None:  # fmt: skip
    """The experts' networks between dispatch and combine: act(rows @ w1) @ w2 to `out`, by segment.

    `received` as dispatch returns it, `w1` (local experts, H, F), `w2` (local experts, F, H), `out`
    (rows, H), `hidden` (blocks, m, F) as workspace: so many blocks are launched, each for experts
    of its own, with products of up to m rows. Asynchronous, and without communication.
    """
    kernel = over_segments[hidden.shape[0], threads, stream]
    kernel(*received, w1, w2, out, ACTIVATIONS[activation], hidden)


class MoE(Dispatch):
    """The layer for up to `tokens` tokens a PE: `plan(x, experts, weights, w1, w2, out=out)`.

    Sizes, `capacity` and dtype as in `ExpertParallel`; `inner` is the experts' F, `activation`
    "silu" or "relu". `method` is "kernel" or "library" (`moe_library`), by default what suits the
    size on this backend; the same on all PEs. Of "kernel", `tile` rows at most are multiplied at
    once, and fewer than `enough` only if an expert has no more. Workspace on each PE: n L capacity
    + tokens top_k rows of H numbers on the heap; and tile (2 H + F) numbers for each block, with
    "library" n capacity L (H + F).
    """

    def __init__(
        self, *, tokens: int, hidden: int, inner: int, experts: int, top_k: int, dtype: Any,
        team: Any = shmem.TEAM_WORLD, activation: str = "silu", capacity: int | None = None,
        tile: int = TILE, enough: int = ENOUGH, method: str | None = None,
        blocks: int | None = None, threads: int | None = None,
    ) -> None:  # fmt: skip
        most, products = shmem.tuning().kernel_products, 2 * tokens * top_k * hidden * inner
        few = most is None or products <= most
        self.method = ("kernel" if few else "library") if method is None else method
        self.moves = self.method == "library"
        super().__init__(
            tokens=tokens, hidden=hidden, experts=experts, top_k=top_k, dtype=dtype, team=team,
            capacity=capacity, blocks=blocks, threads=threads,
        )  # fmt: skip
        if activation not in ACTIVATIONS:
            raise shmem.ArgumentError(
                f"MoE: there is no activation {activation!r}; there is {', '.join(ACTIVATIONS)}"
            )
        if not 1 <= enough <= tile or inner < 1:
            raise shmem.ArgumentError(
                f"MoE: a tile of {tile} rows cannot be multiplied from {enough} on, with {inner} "
                "inner numbers: give 1 <= enough <= tile, and inner of 1 or more"
            )
        self.inner, self.activation, self.enough = inner, activation, enough
        n, share = self.n_pes, self.experts_per_pe
        if self.method not in METHODS:
            raise shmem.ArgumentError(
                f"MoE: method is {method!r}; it can be {', '.join(map(repr, METHODS))}"
            )
        inbox = self.memory(share * n * self.capacity, hidden, dtype=dtype)
        self._boxes = inbox, self.memory(n, share, dtype="uint64"), self.reachable
        if self.method == "library":
            self._layer = LibraryLayer(self, *self._boxes[:2])
            return
        rows, between, results = (
            shmem.device_array((self.blocks, tile, size), dtype) for size in (hidden, inner, hidden)
        )
        self._tiles = rows, between, self.sendable(results)

    def __call__(
        self, x: Any, experts: Any, weights: Any, w1: Any, w2: Any, *, out: Any, stream: Any = 0
    ) -> None:
        """Set `out` (t, H) to the layer of `x` (t, H), t <= tokens; asynchronous.

        With "library" the host waits until the tokens of all PEs have come, to know how many rows
        are multiplied: not if n capacity is 64 or less, and not in a graph, where all are.

        `experts` (t, top_k) of int32, -1 for none, and `weights` (t, top_k) of float32, as `route`
        makes them, or of float64 if `x` is; `w1` (local experts, H, F) and `w2` (local experts, F,
        H) of this PE's experts, from `plan.first_expert` on. Raises `ArgumentError` if shapes or
        dtypes are not the plan's.
        """
        tokens = self._expect_tokens(x, experts)
        self._expect_results(tokens, weights, out)
        self.expect("w1", w1, (self.local_experts, self.hidden, self.inner), self.dtype)
        self.expect("w2", w2, (self.local_experts, self.inner, self.hidden), self.dtype)
        if self.method == "library":
            self._layer(x, self.flat(experts), weights, w1, w2, out, stream)
            return
        self.launch(
            fused, stream, x, self.flat(experts), weights, out, w1, w2,
            ACTIVATIONS[self.activation], self.enough, self.experts, self.capacity, *self._sorting,
            self._heads, *self._boxes, self._returned, self._back, *self._tiles,
        )  # fmt: skip

    def sends(self) -> tuple[int, int]:
        """Bytes and messages that a PE sends in a call, if experts are chosen evenly."""
        segments = (self.n_pes - 1) * self.experts_per_pe
        rows = self.pairs * (self.n_pes - 1) // self.n_pes
        nbytes = 2 * rows * self.hidden * self.dtype.itemsize
        return nbytes, rows + 2 * segments


def reference(
    xs: list[Any], choices: list[Any], weights: list[Any], w1: Any, w2: Any,
    activation: str = "silu", capacity: int | None = None,
) -> tuple[list[Any], list[int]]:  # fmt: skip
    """What each PE ends with, and drops; `w1` (E, H, F) and `w2` (E, F, H) of all experts."""

    def expert(e: int, rows: Any) -> Any:
        inner = rows @ w1[e]
        inner = np.maximum(inner, 0) if activation == "relu" else inner / (1 + np.exp(-inner))
        return inner @ w2[e]

    return reference_around(xs, choices, weights, expert, capacity)
