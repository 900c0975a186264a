"""The sum of all PEs' products, each PE keeping its rows: the layer after."""

import numpy as np
from gpushmem.kernels import GemmReduceScatter

import gpushmem as shmem

ROWS, COLUMNS, DEPTH, TILE = 512, 256, 256, (128, 256)

with shmem.session(heap_size="64M") as world:
    plan = GemmReduceScatter(m=ROWS, n=COLUMNS, k=DEPTH, dtype="float32", tile=TILE)
    a = shmem.to_device(np.ones((world.n_pes * ROWS, DEPTH), "float32"))
    b = shmem.to_device(np.ones((DEPTH, COLUMNS), "float32"))
    out = shmem.device_array((ROWS, COLUMNS), "float32")
    for _ in range(500):
        plan(a, b, out=out)
    shmem.synchronize()
