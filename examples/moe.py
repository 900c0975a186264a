"""Run a layer with a mixture of experts: route, then dispatch, experts and combine in one kernel.

gpushmem run -n 4 examples/moe.py
"""

import numpy as np
from gpushmem.kernels import MoE, route
from gpushmem.kernels.moe import reference

import gpushmem as shmem

TOKENS, HIDDEN, INNER, EXPERTS, TOP_K = 48, 64, 128, 6, 2

shmem.init()
me, n = shmem.my_pe(), shmem.n_pes()
layer = MoE(
    tokens=TOKENS, hidden=HIDDEN, inner=INNER, experts=EXPERTS, top_k=TOP_K, dtype="float32"
)
rng = np.random.default_rng(0)  # the same on all PEs: each can check its result
w1 = rng.normal(size=(EXPERTS, HIDDEN, INNER)).astype("float32") / HIDDEN**0.5
w2 = rng.normal(size=(EXPERTS, INNER, HIDDEN)).astype("float32") / INNER**0.5
mine = slice(layer.first_expert, layer.first_expert + layer.local_experts)
w1_here, w2_here = shmem.to_device(w1[mine]), shmem.to_device(w2[mine])

inputs = shmem.empty((TOKENS, HIDDEN), "float32")  # symmetric: rows of it are sent
experts = shmem.device_array((TOKENS, TOP_K), "int32")
weights = shmem.device_array((TOKENS, TOP_K), "float32")
out = shmem.device_array((TOKENS, HIDDEN), "float32")
off = 0.0
for call in range(5):
    tokens = TOKENS - 7 * me - call  # PEs have different numbers of tokens
    rng = np.random.default_rng([me, call])
    x = rng.normal(size=(tokens, HIDDEN)).astype("float32")
    logits = rng.normal(size=(tokens, EXPERTS)).astype("float32")
    chosen, share, result = experts[:tokens], weights[:tokens], out[:tokens]
    inputs[:tokens] = x
    route(shmem.to_device(logits), experts=chosen, weights=share)
    layer(inputs[:tokens], chosen, share, w1_here, w2_here, out=result)
    (expected,), _ = reference([x], [chosen.numpy()], [share.numpy()], w1, w2)
    off = max(off, float(np.abs(result.numpy() - expected).max()))
shmem.barrier_all()
if me == 0:
    print(f"{EXPERTS} experts on {n} PEs: off by {off:.1e} at most")
assert off < 1e-5
assert layer.dropped() == 0
layer.free()
shmem.finalize()
