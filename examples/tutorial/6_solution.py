"""Run the second half of the layer so that all PEs get all rows."""

import numpy as np
from gpushmem.kernels import GemmAllReduce

import gpushmem as shmem

TOKENS, MODEL, HIDDEN = 64, 32, 96

with shmem.session() as world:
    me, n = world.my_pe, world.n_pes
    rng = np.random.default_rng(1)
    inner = rng.normal(size=(TOKENS, HIDDEN)).astype("float32")
    down = rng.normal(size=(HIDDEN, MODEL)).astype("float32")
    hidden = HIDDEN // n
    units = slice(me * hidden, (me + 1) * hidden)
    my_inner = shmem.array(inner[:, units].copy())
    my_down = shmem.to_device(down[units])
    out = shmem.device_array((TOKENS, MODEL), "float32")
    with GemmAllReduce(m=TOKENS, n=MODEL, k=hidden, dtype="float32") as plan:
        plan(my_inner, my_down, out=out)
        assert np.allclose(out.numpy(), inner @ down, atol=1e-3)
        if me == 0:
            nbytes, messages = plan.sends()
            print(f"GemmAllReduce: a PE sends {nbytes} bytes in {messages} messages")
