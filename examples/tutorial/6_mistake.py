"""A mistake: the plan is given all rows of x, where it takes those of this PE."""

import numpy as np
from gpushmem.kernels import AllGatherGemm

import gpushmem as shmem

TOKENS, MODEL, HIDDEN = 64, 32, 96

with shmem.session() as world:
    n = world.n_pes
    x = shmem.array(np.ones((TOKENS, MODEL), "float32"))
    my_up = shmem.to_device(np.ones((MODEL, HIDDEN // n), "float32"))
    inner = shmem.device_array((TOKENS, HIDDEN // n), "float32")
    with AllGatherGemm(m=TOKENS // n, n=HIDDEN // n, k=MODEL, dtype="float32") as gather:
        gather(x, my_up, out=inner)
