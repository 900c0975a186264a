"""Attend to a sequence that is divided over PEs: a ring, and rows of PEs that exchange heads.

gpushmem run -n 4 examples/long_context.py
"""

import numpy as np
from gpushmem.kernels import ContextParallel, RingAttention
from gpushmem.kernels.ring_attention import reference
from gpushmem.kernels.ulysses import rotated

import gpushmem as shmem

TOKENS, HEADS, SHARED, SIZE = 60, 4, 2, 16  # of a PE; heads of keys that heads of queries share

shmem.init()
me, n = shmem.my_pe(), shmem.n_pes()
rng = np.random.default_rng(1)
qkv = rng.normal(size=(n * TOKENS, HEADS + 2 * SHARED, SIZE)).astype("float32")
q, k, v = np.split(qkv, [HEADS, HEADS + SHARED], axis=1)
sizes = {"tokens": TOKENS, "heads": HEADS, "kv_heads": SHARED, "head_dim": SIZE, "dtype": "float32"}
out = shmem.device_array((TOKENS, HEADS, SIZE), "float32")

# Keys and values travel; each PE has an early and a late part of the sequence, for equal work.
with RingAttention(**sizes, causal=True) as plan:
    mine = (shmem.array(x[plan.positions]) for x in (q, k, v))  # symmetric: they are sent
    plan(*mine, out=out, lse=shmem.device_array((HEADS, TOKENS), "float32"))
    wanted = reference(q, k, v, causal=True)[0]
    assert np.allclose(out.numpy(), wanted[plan.positions], atol=1e-4)
    nbytes, messages = plan.sends()

# In rows of two PEs heads are exchanged, with rotary embedding; in columns keys and values travel.
wide = 2 if n % 2 == 0 else 1
row, column = shmem.team_split_2d(shmem.TEAM_WORLD, wide)
angles = np.arange(n * TOKENS)[:, None] * 1000.0 ** -np.linspace(0, 1, SIZE // 2)
cos, sin = np.cos(angles).astype("float32"), np.sin(angles).astype("float32")
with ContextParallel(**sizes, causal=True, rows=row, columns=column) as plan:
    at, lse = plan.positions, shmem.device_array((HEADS // wide, wide * TOKENS), "float32")
    x, my_cos, my_sin = (shmem.to_device(part[at]) for part in (qkv, cos, sin))
    plan(x, out=out, lse=lse, cos=my_cos, sin=my_sin)
    wanted = reference(rotated(q, cos, sin), rotated(k, cos, sin), v, causal=True)[0]
    assert np.allclose(out.numpy(), wanted[at], atol=1e-4)

if me == 0:
    print(f"{n * TOKENS} tokens on {n} PEs; {nbytes} bytes in {messages} messages for a ring")
shmem.finalize()
