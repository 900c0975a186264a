"""Sort keys over all PEs: each sorts its own, sends parts to their PEs, and merges what came."""

import numpy as np
from gpushmem.kernels import SampleSort

import gpushmem as shmem

SIZE = 20_000

with shmem.session(heap_size="64M") as world:
    keys = np.random.default_rng(world.my_pe).integers(0, 1 << 40, SIZE)
    plan = SampleSort(size=SIZE, dtype="int64")
    mine, received = shmem.empty(plan.capacity, "int64"), shmem.device_array(world.n_pes, "int64")
    unsorted = shmem.to_device(keys)
    for _ in range(100):
        plan(unsorted, out=mine, received=received)
    shmem.synchronize()
