"""All PEs' rows of a, times b: a layer whose input is divided by rows."""

import numpy as np
from gpushmem.kernels import AllGatherGemm

import gpushmem as shmem

ROWS, COLUMNS, DEPTH, TILE = 512, 256, 256, (128, 256)

with shmem.session(heap_size="64M") as world:
    plan = AllGatherGemm(m=ROWS, n=COLUMNS, k=DEPTH, dtype="float32", tile=TILE)
    a = shmem.full((ROWS, DEPTH), world.my_pe, dtype="float32")
    b = shmem.to_device(np.ones((DEPTH, COLUMNS), "float32"))
    out = shmem.device_array((world.n_pes * ROWS, COLUMNS), "float32")
    for _ in range(500):
        plan(a, b, out=out)
    shmem.synchronize()
