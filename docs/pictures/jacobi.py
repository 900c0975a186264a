"""Heat in a square cut among PEs: 50 steps a launch."""

import numpy as np
from gpushmem.kernels import Jacobi

import gpushmem as shmem

with shmem.session(heap_size="64M"):
    plan = Jacobi(shape=(1024, 1024), dtype="float32")
    u = plan.scatter(np.zeros((1026, 1026), "float32"))
    for _ in range(30):
        plan(u, 50)
        shmem.synchronize()
