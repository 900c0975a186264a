"""Causal attention to the tokens of all PEs: blocks of keys and values travel while PEs compute."""

from gpushmem.kernels import RingAttention

import gpushmem as shmem

TOKENS, HEADS, SIZE = 512, 4, 64

with shmem.session(heap_size="64M") as world:
    plan = RingAttention(
        tokens=TOKENS, heads=HEADS, head_dim=SIZE, dtype="float32", causal=True, tile=(256, 256)
    )
    q, k, v, out = (shmem.ones((TOKENS, HEADS, SIZE), dtype="float32") for _ in range(4))
    lse = shmem.device_array((HEADS, TOKENS), "float32")
    for _ in range(300):
        plan(q, k, v, out=out, lse=lse)
    shmem.synchronize()
