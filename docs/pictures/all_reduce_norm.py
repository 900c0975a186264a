"""The end of a transformer's layer that is split over PEs: sum, add to the residual, normalise."""

import numpy as np
from gpushmem.kernels import AllReduceRMSNorm

import gpushmem as shmem

TOKENS, HIDDEN = 512, 1024

with shmem.session(heap_size="64M") as world:
    plan = AllReduceRMSNorm(tokens=TOKENS, hidden=HIDDEN, dtype="float32")
    x = shmem.full((TOKENS, HIDDEN), world.my_pe, dtype="float32")
    residual, out = (shmem.to_device(np.zeros((TOKENS, HIDDEN), "float32")) for _ in range(2))
    weight = shmem.to_device(np.ones(HIDDEN, "float32"))
    for _ in range(1000):
        plan(x, residual, weight, out=out)
    shmem.synchronize()
