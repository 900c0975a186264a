"""Divide the two matrices of a network's layer over PEs: products that send while they multiply.

gpushmem run -n 4 examples/tensor_parallel.py
"""

import numpy as np
from gpushmem.kernels import AllGatherGemm, GemmAllReduce, GemmReduceScatter

import gpushmem as shmem

TOKENS, MODEL, HIDDEN = 240, 96, 480  # a PE has TOKENS / n rows, HIDDEN / n of the hidden units

shmem.init()
me, n = shmem.my_pe(), shmem.n_pes()
tokens, hidden = TOKENS // n, HIDDEN // n
rng = np.random.default_rng(1)
x = rng.normal(size=(TOKENS, MODEL)).astype("float32")
up = rng.normal(size=(MODEL, HIDDEN)).astype("float32") / 10
down = rng.normal(size=(HIDDEN, MODEL)).astype("float32") / 20
my_tokens = slice(me * tokens, (me + 1) * tokens)
my_units = slice(me * hidden, (me + 1) * hidden)
my_x = shmem.array(x[my_tokens])  # symmetric: it is sent from, perhaps to other machines
my_up, my_down = map(shmem.to_device, (up[:, my_units].copy(), down[my_units]))

# Sequence parallel: everybody's tokens times my columns; then my rows, and the sum of all.
inner = shmem.device_array((TOKENS, hidden), "float32")
mine = shmem.device_array((tokens, MODEL), "float32")
gather = AllGatherGemm(m=tokens, n=hidden, k=MODEL, dtype="float32")
scatter = GemmReduceScatter(m=tokens, n=MODEL, k=hidden, dtype="float32")
gather(my_x, my_up, out=inner)
scatter(inner, my_down, out=mine)
wanted = x @ up @ down
assert np.allclose(mine.numpy(), wanted[my_tokens], atol=1e-3)

# Or all tokens of the result on all PEs.
out = shmem.device_array((TOKENS, MODEL), "float32")
total = GemmAllReduce(m=TOKENS, n=MODEL, k=hidden, dtype="float32")
total(inner, my_down, out=out)
assert np.allclose(out.numpy(), wanted, atol=1e-3)

if me == 0:
    nbytes, messages = gather.sends()
    print(f"{TOKENS} tokens through a layer on {n} PEs; {nbytes} bytes, {messages} messages for x")
for plan in (gather, scatter, total):
    plan.free()
shmem.finalize()
