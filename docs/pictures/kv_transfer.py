"""Layers of a cache, from a PE that prefills to one that decodes; each computes something."""

import numpy as np
from gpushmem.kernels import KVTransfer
from numba import cuda

import gpushmem as shmem

LAYERS, PAGES = 8, 64


@shmem.jit
def compute(cache, turns):
    """Something that takes a while."""
    for _ in range(turns):
        for i in range(cuda.threadIdx.x, cache.size, cuda.blockDim.x):
            cache[i] = cache[i] * 0.5 + 1


with shmem.session(heap_size="128M") as world:
    plan = KVTransfer(
        layers=LAYERS, pages=PAGES, page_size=16, kv_heads=2, head_dim=64, dtype="float32",
        prefill=(0,), decode=(1,), requests=4,
    )  # fmt: skip
    pages = shmem.to_device(np.arange(PAGES, dtype="int32"))
    for request in range(60):
        while request >= 3 and not plan.finished(request - 3):
            shmem.synchronize()
        if world.my_pe == 0:
            plan.start(request, pages)
        else:
            plan.receive(request, pages)
        for layer in range(LAYERS):
            if world.my_pe == 1:
                plan.wait(request, layer)
            compute[1, 128](plan.flat(plan.cache[layer]), 2)
            if world.my_pe == 0:
                plan.send(request, layer)
    shmem.synchronize()
