"""A layer with a mixture of experts: dispatch, experts and combine in one kernel."""

import numpy as np
from gpushmem.kernels import MoE

import gpushmem as shmem

TOKENS, HIDDEN, INNER, EXPERTS = 64, 256, 512, 4

with shmem.session(heap_size="64M") as world:
    layer = MoE(
        tokens=TOKENS, hidden=HIDDEN, inner=INNER, experts=EXPERTS, top_k=2, dtype="float32"
    )
    x = shmem.ones((TOKENS, HIDDEN), dtype="float32")
    chosen = np.arange(2 * TOKENS, dtype="int32").reshape(TOKENS, 2) % EXPERTS
    experts, weights = shmem.to_device(chosen), shmem.to_device(np.ones_like(chosen, "float32"))
    w1 = shmem.to_device(np.ones((layer.local_experts, HIDDEN, INNER), "float32"))
    w2 = shmem.to_device(np.ones((layer.local_experts, INNER, HIDDEN), "float32"))
    out = shmem.device_array((TOKENS, HIDDEN), "float32")
    for _ in range(300):
        layer(x, experts, weights, w1, w2, out=out)
    shmem.synchronize()
