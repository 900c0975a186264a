"""Tokens to the PEs of their experts and back, around the experts' own kernel."""

import numpy as np
from gpushmem.kernels import ExpertParallel, expert_ffn

import gpushmem as shmem

TOKENS, HIDDEN, INNER, EXPERTS = 64, 256, 512, 4

with shmem.session(heap_size="64M") as world:
    plan = ExpertParallel(
        tokens=TOKENS, hidden=HIDDEN, experts=EXPERTS, top_k=2, dtype="float32",
        form="throughput",
    )  # fmt: skip
    x = shmem.ones((TOKENS, HIDDEN), dtype="float32")
    chosen = np.arange(2 * TOKENS, dtype="int32").reshape(TOKENS, 2) % EXPERTS
    experts, weights = shmem.to_device(chosen), shmem.to_device(np.ones_like(chosen, "float32"))
    w1 = shmem.to_device(np.ones((plan.local_experts, HIDDEN, INNER), "float32"))
    w2 = shmem.to_device(np.ones((plan.local_experts, INNER, HIDDEN), "float32"))
    y = shmem.empty(plan.received.rows.shape, "float32")
    scratch = shmem.device_array((plan.blocks, 256, INNER), "float32")
    out = shmem.device_array((TOKENS, HIDDEN), "float32")
    for _ in range(300):
        plan.dispatch(x, experts)
        expert_ffn(plan.received, w1, w2, out=y, hidden=scratch)
        plan.combine(y, weights, out=out)
    shmem.synchronize()
