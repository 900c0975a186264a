"""Run a layer of two matrices that are divided among the PEs: products that send as they multiply.

gpushmem run -n 4 examples/tutorial/6_fused_layer.py
"""

import numpy as np
from gpushmem.kernels import AllGatherGemm, GemmReduceScatter

import gpushmem as shmem

TOKENS, MODEL, HIDDEN = 64, 32, 96

with shmem.session() as world:
    me, n = world.my_pe, world.n_pes
    rng = np.random.default_rng(1)  # the same numbers on all PEs
    x = rng.normal(size=(TOKENS, MODEL)).astype("float32")
    up = rng.normal(size=(MODEL, HIDDEN)).astype("float32")
    down = rng.normal(size=(HIDDEN, MODEL)).astype("float32")

    tokens, hidden = TOKENS // n, HIDDEN // n
    rows, units = slice(me * tokens, (me + 1) * tokens), slice(me * hidden, (me + 1) * hidden)
    my_x = shmem.array(x[rows])  # symmetric: it is sent from
    my_up = shmem.to_device(up[:, units].copy())
    my_down = shmem.to_device(down[units])
    inner = shmem.device_array((TOKENS, hidden), "float32")
    out = shmem.device_array((tokens, MODEL), "float32")

    gather = AllGatherGemm(m=tokens, n=hidden, k=MODEL, dtype="float32")
    scatter = GemmReduceScatter(m=tokens, n=MODEL, k=hidden, dtype="float32")
    for _ in range(3):
        gather(my_x, my_up, out=inner)  # all rows of x, times my columns of up
        scatter(inner, my_down, out=out)  # my rows of the sum over all PEs
    assert np.allclose(out.numpy(), (x @ up @ down)[rows], atol=1e-3)
    if me == 0:
        for plan in (gather, scatter):
            nbytes, messages = plan.sends()
            print(f"{type(plan).__name__}: a PE sends {nbytes} bytes in {messages} messages")
    gather.free()
    scatter.free()
