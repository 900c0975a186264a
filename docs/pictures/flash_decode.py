"""Attention to keys that are cut among two PEs."""

import numpy as np
from gpushmem.kernels import FlashDecode

import gpushmem as shmem

BATCH, HEADS, KV_HEADS, DIM, PAGES = 2, 8, 2, 64, 64

with shmem.session(heap_size="64M"):
    plan = FlashDecode(
        batch=BATCH, heads=HEADS, kv_heads=KV_HEADS, head_dim=DIM, pages=PAGES, page_size=16,
        most_pages=PAGES // BATCH, dtype="float32",
    )  # fmt: skip
    q = shmem.full((BATCH, 1, HEADS, DIM), 0.1, "float32")
    cache = shmem.full((PAGES, 2, 16, KV_HEADS, DIM), 0.5, "float32")
    tables = shmem.to_device(np.arange(PAGES, dtype="int32").reshape(BATCH, -1))
    lengths = shmem.to_device(np.full((BATCH, 1), 16 * PAGES // BATCH, "int32"))
    out = shmem.device_array(q.shape, "float32")
    for _ in range(300):
        plan(q, cache, tables, lengths, out=out)
    shmem.synchronize()
