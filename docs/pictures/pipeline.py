"""Layers in two stages: activations forward, gradients back, by a schedule, in one kernel."""

from gpushmem.kernels import PipelinedLayers

import gpushmem as shmem

ROWS, HIDDEN, LAYERS, MICROBATCHES = 128, 256, 2, 4

with shmem.session(heap_size="64M") as world:
    plan = PipelinedLayers(
        rows=ROWS, hidden=HIDDEN, layers=LAYERS, microbatches=MICROBATCHES, dtype="float32",
        kind="zero_bubble",
    )  # fmt: skip
    weights, gradients = (
        shmem.to_device(shmem.ones((1, LAYERS, HIDDEN, HIDDEN), "float32").numpy() / HIDDEN)
        for _ in range(2)
    )
    x, target = (shmem.ones((MICROBATCHES, ROWS, HIDDEN), "float32") for _ in range(2))
    loss = shmem.device_array((MICROBATCHES, ROWS), "float32")
    last = {"target": target, "loss": loss} if world.my_pe == world.n_pes - 1 else {"x": x}
    for _ in range(500):
        plan(weights, gradients=gradients, **last)
    shmem.synchronize()
