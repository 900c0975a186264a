"""Train layers that are cut into stages, in one kernel on each PE: 1F1B, and with less of a bubble.

gpushmem run -n 4 examples/pipeline.py
"""

import numpy as np
from gpushmem.kernels import PipelinedLayers
from gpushmem.kernels.pipeline import reference

import gpushmem as shmem

ROWS, HIDDEN, LAYERS, STEPS, RATE = 16, 32, 2, 40, 2e-4

shmem.init()
me, n = shmem.my_pe(), shmem.n_pes()
microbatches = 2 * n
rng = np.random.default_rng(0)  # the same on all PEs: each can check its result
whole = rng.normal(0, (2 / HIDDEN) ** 0.5, (n, 1, LAYERS, HIDDEN, HIDDEN)).astype("float32")
batch = microbatches, ROWS, HIDDEN
x, target = rng.normal(size=batch).astype("float32"), rng.random(batch).astype("float32")

for kind in ("1f1b", "zero_bubble"):
    sizes = {"rows": ROWS, "hidden": HIDDEN, "layers": LAYERS, "microbatches": microbatches}
    plan = PipelinedLayers(**sizes, dtype="float32", kind=kind)
    weights, gradients = shmem.to_device(whole[me]), shmem.device_array(whole[me].shape, "float32")
    given, loss = shmem.to_device(x), shmem.device_array(batch[:2], "float32")
    wanted, losses = whole.copy(), []
    for _ in range(STEPS):
        ends = {"x": given} if me == 0 else {}
        if me == n - 1:
            ends |= {"target": shmem.to_device(target), "loss": loss}
        plan(weights, gradients=gradients, **ends)  # all microbatches, forward and backward
        weights.copy_from(weights.numpy() - RATE * gradients.numpy())
        alone, of_all = reference(x, target, wanted)
        wanted -= (RATE * of_all).astype("float32")
        losses.append(loss.numpy().sum() if me == n - 1 else alone.sum())
        assert abs(losses[-1] / alone.sum() - 1) < 1e-3
    assert np.allclose(weights.numpy(), wanted[me], atol=1e-3)
    assert losses[-1] < losses[0]
    if me == n - 1:
        print(f"{kind}: loss {losses[0]:.1f} -> {losses[-1]:.1f}, as in one process;", end=" ")
        print(
            f"{plan.schedule.bubble():.0%} of the time stages wait", plan.schedule.draw(), sep="\n"
        )
    plan.free()
shmem.finalize()
