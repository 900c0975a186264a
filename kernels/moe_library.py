"""A mixture of experts whose products are the vendor's library's: `MoE(method="library")`.

    stream    send tokens | wait, @ w1, act, @ w2 | wait, @ w1, act, @ w2 | ... | combine
                            expert 0                expert 1

Tokens travel as in the low latency form of `moe_dispatch`, to places of fixed sizes. The host does
not know how many come, so it has the library multiply all places of an expert, n capacity rows,
whether they are filled or not: so many times what is needed, if experts are chosen evenly,

    waste = E capacity / (tokens top_k)

and what comes of empty places is not sent. A kernel of one warp waits for the tokens of an expert,
those of the next ones may still be on their way; activations know the counts. As in `gemm_beside`
products are cuBLASLt's on GPUs, and those of BLAS on CPUs, and a call can be captured in a graph.

Boxes are there once, as in `moe_dispatch` and for the same reasons: `combine` ends a call, and no
PE sends the next tokens before it has heard from all experts.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gpushmem.kernels.activations import ACTIVATIONS, activate
from gpushmem.kernels.moe_dispatch import RECEIVE, SEND, combine, dispatch_low_latency
from gpushmem.kernels.moe_parts import COUNT, receive_head
from numba import cuda

import gpushmem as shmem

__all__ = ["LibraryLayer", "waste_of"]

WARP, KEPT = 32, 16  # threads; arrays of weights whose experts are known


@shmem.jit
def wait_for_tokens(local, counts, heads, arrived, team, epochs):
    """Between two products: the tokens of an expert are there. One block, and it ends no epoch."""
    for source in range(cuda.threadIdx.x, counts.size, cuda.blockDim.x):
        counts[source] = receive_head(arrived, heads, source, local) & COUNT


@shmem.jit
def activate_rows(hidden, counts, silu, team, epochs):
    """Of `hidden` (n, capacity, F) those that came, `counts` (n,); a block has rows of its own."""
    for source in range(counts.size):
        for r in range(cuda.blockIdx.x, counts[source], cuda.gridDim.x):
            activate(hidden[source, r : r + 1], silu)


def waste_of(plan: Any) -> float:
    """How many times as many rows are multiplied as there are, if experts are chosen evenly."""
    return float(plan.experts * plan.capacity / max(1, plan.pairs))


class LibraryLayer:
    """What `MoE` does with the library; workspace: n capacity (L H + F) numbers."""

    def __init__(self, plan: Any, inbox: Any, arrived: Any) -> None:
        self.plan, n, places = plan, plan.n_pes, plan.n_pes * plan.capacity
        experts = range(plan.local_experts)
        plan.bound += 2 * plan.local_experts  # each with launches of its own
        self._boxes = inbox, arrived, plan.reachable
        self._rows = [inbox[e * places : (e + 1) * places] for e in experts]
        hidden = shmem.device_array((places, plan.inner), plan.dtype)
        self._hidden, self._segments = hidden, hidden.reshape(n, plan.capacity, plan.inner)
        made = shmem.device_array((max(1, plan.local_experts) * places, plan.hidden), plan.dtype)
        self._made = plan.sendable(made)
        self._results = [self._made[e * places : (e + 1) * places] for e in experts]
        self._counts = [shmem.to_device(np.zeros(n, "int32")) for _ in experts]
        starts = np.arange(plan.local_experts * n, dtype="int32").reshape(-1, n) * plan.capacity
        self._starts = shmem.to_device(np.stack([starts] * plan.blocks))
        self._none = self._starts[0]  # no counts: dispatch only sends
        self._weights: dict[int, tuple[Any, list[Any]]] = {}  # by id: an array, and its experts'

    def __call__(
        self, x: Any, experts: Any, weights: Any, w1: Any, w2: Any, out: Any, stream: Any
    ) -> None:
        """Queue the call."""
        plan, (inbox, arrived, near) = self.plan, self._boxes
        sizes = plan.experts, plan.capacity
        plan.launch(
            dispatch_low_latency, stream, x, experts, plan.top_k, *sizes, *plan._sorting,
            self._starts, self._none, plan._heads, inbox, arrived, near, SEND,
        )  # fmt: skip
        silu = ACTIVATIONS[plan.activation]
        step = 1, min(WARP, plan.threads), stream
        grid = plan.blocks, plan.threads, stream
        matrices = zip(self._of_experts("w1", w1), self._of_experts("w2", w2), strict=True)
        for e, (first, second) in enumerate(matrices):
            counts = self._counts[e]
            plan.launch_as(step, plan._epochs, wait_for_tokens, e, counts, plan._heads, arrived)
            shmem.gemm(self._hidden, self._rows[e], first, False, stream=stream)
            plan.launch_as(grid, plan._epochs, activate_rows, self._segments, counts, silu)
            shmem.gemm(self._results[e], self._hidden, second, False, stream=stream)
        plan.launch(
            combine, stream, self._made, weights, out, plan.experts, plan._position, self._starts,
            plan._heads, plan._returned, plan._back, near, SEND | RECEIVE,
        )  # fmt: skip

    def _of_experts(self, what: str, array: Any) -> list[Any]:
        """The experts' matrices; the same objects for the same array."""
        known = self._weights.get(id(array))
        if known is None or known[0] is not array:
            if len(self._weights) >= KEPT:
                self._weights.clear()
            given = self.plan.on_device(what, array)
            self._weights[id(array)] = known = array, [given[e] for e in range(given.shape[0])]
        return known[1]
