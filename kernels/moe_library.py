"""A mixture of experts whose products are the vendor's library's: `MoE(method="library")`.

    stream    send tokens | take | @ w1 of all experts | act | @ w2 of all experts | combine
    host                         | how many of an expert?

Tokens travel as in the low latency form of `moe_dispatch`, to places of fixed sizes. A kernel waits
for them and puts those of each expert behind each other, where it has `places` rows, n capacity;
then two calls of `gemm_batched` multiply the first rows of all experts, as many as the expert with
most tokens has, up to a power of two. As the library does not ask the device, the host does: the
call waits until the tokens are there, and is no longer asynchronous so far. It does not if there
are few places anyway, ENOUGH, and while it is captured for a graph: there all places are
multiplied, so many times what is needed, if experts are chosen evenly,

    E capacity / (tokens top_k)

and what comes of empty places is not sent. As in `gemm_beside` products are cuBLASLt's on GPUs; on
CPUs they are NumPy's.

Boxes are there once, as in `moe_dispatch` and for the same reasons: `combine` ends a call, and no
PE sends the next tokens before it has heard from all experts. Nor is the host's array written
again before the host has read it: it launches the next call.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gpushmem.kernels.activations import ACTIVATIONS, activate
from gpushmem.kernels.moe_dispatch import RECEIVE, SEND, combine, dispatch_low_latency
from gpushmem.kernels.moe_parts import COUNT, receive_head
from numba import cuda

import gpushmem as shmem

__all__ = ["LibraryLayer"]

ENOUGH = 64  # rows: of fewer a product takes as long, on GPUs, since it reads all weights


@shmem.jit
def take_tokens(rows, filled, told, starts, capacity, heads, inbox, arrived, team, epochs):
    """Wait for the tokens of all experts and set `rows` (L, places, H) to them; ends no epoch.

    A block has experts of its own. `filled` (L,), and `told`, for the host: how many an expert has;
    `starts` (blocks, L, n): where in rows those of each source begin, for each block of `combine`.
    """
    t, blocks, n = cuda.threadIdx.x, cuda.gridDim.x, heads.shape[0]
    for local in range(cuda.blockIdx.x, filled.size, blocks):
        for source in range(t, n, cuda.blockDim.x):
            receive_head(arrived, heads, source, local)
        cuda.syncthreads()
        first = 0
        for source in range(n):
            count, box = heads[source, local] & COUNT, (local * n + source) * capacity
            shmem.copy_block(rows[local, first : first + count], inbox[box : box + count])
            for b in range(t, starts.shape[0], cuda.blockDim.x):
                starts[b, local, source] = local * rows.shape[1] + first
            first += count
        if t == 0:
            filled[local] = told[local] = first


@shmem.jit
def activate_rows(hidden, filled, silu, team, epochs):
    """Of `hidden` (L, places, F) each expert's first rows, `filled` (L,); a block has its own."""
    before, blocks = 0, cuda.gridDim.x
    for local in range(filled.size):
        count = filled[local]
        for r in range((cuda.blockIdx.x + blocks - before % blocks) % blocks, count, blocks):
            activate(hidden[local, r : r + 1], silu)
        before += count


class LibraryLayer:
    """What `MoE` does with the library; workspace: n capacity L (H + F) numbers."""

    def __init__(self, plan: Any, inbox: Any, arrived: Any) -> None:
        self.plan, experts = plan, plan.local_experts
        self.places = plan.n_pes * plan.capacity
        on_gpus = bool(plan.tuning.multiprocessors)
        self._least = ENOUGH if on_gpus else 1
        self._grid = plan.tuning.all_blocks(plan.threads) if on_gpus else plan.blocks
        self._inbox = inbox, arrived
        # Tokens, and what is made of them: these are written when those are not needed any more.
        rows = shmem.device_array((max(1, experts) * self.places, plan.hidden), plan.dtype)
        self._made = plan.sendable(rows)
        self._rows = self._made[: experts * self.places].reshape(experts, self.places, plan.hidden)
        self._hidden = shmem.device_array((experts, self.places, plan.inner), plan.dtype)
        self._told = np.zeros(max(1, experts), "int32")
        self._filled = shmem.to_device(self._told[:experts])
        self._for_host = shmem.register(self._told)
        plan._registered.append(self._for_host)  # until `free`
        starts = np.zeros((plan.blocks, experts, plan.n_pes), "int32")
        self._starts = shmem.to_device(starts)
        self._none = self._starts[0]  # no counts: dispatch only sends
        self._reading = shmem.stream()
        self._first: dict[int, tuple[Any, Any]] = {}  # by number: the first rows of all experts

    def __call__(
        self, x: Any, experts: Any, weights: Any, w1: Any, w2: Any, out: Any, stream: Any
    ) -> None:
        """Queue the call."""
        plan, (inbox, arrived), near = self.plan, self._inbox, self.plan.reachable
        plan.launch(
            dispatch_low_latency, stream, x, experts, plan.top_k, plan.experts, plan.capacity,
            *plan._sorting, self._starts, self._none, plan._heads, inbox, arrived, near, SEND,
        )  # fmt: skip
        # Without room for any, too: who has heard from all may send the next.
        plan.launch_as(
            (plan.blocks, plan.threads, stream), plan._epochs, take_tokens, self._rows,
            self._filled, self._for_host, self._starts, plan.capacity, plan._heads, inbox, arrived,
        )  # fmt: skip
        if self._rows.size:
            self._multiply(w1, w2, stream)
        plan.launch(
            combine, stream, self._made, weights, out, plan.experts, plan._position, self._starts,
            plan._heads, plan._returned, plan._back, near, SEND | RECEIVE,
        )  # fmt: skip

    def _multiply(self, w1: Any, w2: Any, stream: Any) -> None:
        plan = self.plan
        rows, hidden = self._first_rows(self._most(stream))
        shmem.gemm_batched(hidden, rows, plan.on_device("w1", w1), False, stream=stream)
        plan.launch_as(
            (self._grid, plan.threads, stream), plan._epochs, activate_rows, self._hidden,
            self._filled, ACTIVATIONS[plan.activation],
        )  # fmt: skip
        shmem.gemm_batched(rows, hidden, plan.on_device("w2", w2), False, stream=stream)

    def _most(self, stream: Any) -> int:
        """How many rows of each expert are multiplied."""
        if self.places <= self._least or shmem.is_capturing(stream):
            return self.places
        shmem.wait_stream(self._reading, stream)
        self._reading.synchronize()
        most = int(self._told.max())
        return min(self.places, max(self._least, 1 << (most - 1).bit_length())) if most else 0

    def _first_rows(self, number: int) -> tuple[Any, Any]:
        if number not in self._first:
            self._first[number] = self._rows[:, :number], self._hidden[:, :number]
        return self._first[number]
