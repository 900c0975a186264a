"""Decode with keys and values cut along the sequence: partial attention, merged in one round trip.

gpushmem run -n 4 examples/flash_decode.py
"""

import numpy as np
from gpushmem.kernels import FlashDecode
from gpushmem.kernels.flash_decode import reference

import gpushmem as shmem

BATCH, DRAFTED, HEADS, KV_HEADS, DIM = 2, 3, 8, 2, 64  # 3 tokens at a time: the last 2 are guesses
PAGE_SIZE, PAGES = 16, 24  # of each PE

shmem.init()
me, n = shmem.my_pe(), shmem.n_pes()
rng = np.random.default_rng(0)  # the same on all PEs: each can check its result
cache = rng.normal(size=(n, PAGES, 2, PAGE_SIZE, KV_HEADS, DIM)).astype("float32")
tables = np.arange(PAGES, dtype="int32").reshape(BATCH, -1)  # each PE's pages of the two sequences
tokens = np.array([n * 150, n * 40 + 3])  # in each sequence, with those that are new

# PE p has a range of a sequence's tokens; a query sees those before it.
share = -(-tokens // n)
query_at = tokens[:, None] - DRAFTED + 1 + np.arange(DRAFTED)
lengths = np.stack([np.clip(query_at - (p * share)[:, None], 0, share[:, None]) for p in range(n)])
q = rng.normal(size=(BATCH, DRAFTED, HEADS, DIM)).astype("float32")

plan = FlashDecode(
    batch=BATCH, queries=DRAFTED, heads=HEADS, kv_heads=KV_HEADS, head_dim=DIM, pages=PAGES,
    page_size=PAGE_SIZE, most_pages=PAGES // BATCH, dtype="float32",
)  # fmt: skip
given = [shmem.to_device(x) for x in (q, cache[me], tables, lengths[me].astype("int32"))]
out = shmem.device_array(q.shape, "float32")
plan(*given, out=out)

off = 0.0
for b in range(BATCH):
    keys, values = (cache[:, tables[b], k].reshape(-1, KV_HEADS, DIM) for k in (0, 1))
    places = np.arange(PAGES // BATCH * PAGE_SIZE)
    seen = np.concatenate([places < lengths[p, b][:, None] for p in range(n)], axis=1)
    off = max(off, float(np.abs(out.numpy()[b] - reference(q[b], keys, values, seen)).max()))
if me == 0:
    print(f"{tokens.sum()} keys on {n} PEs, {DRAFTED} queries each: off by {off:.1e} at most")
assert off < 1e-5
plan.free()
shmem.finalize()
