"""Train layers data-parallel, with the optimizer's state divided among PEs: Adam, then Muon.

gpushmem run -n 4 examples/zero.py
"""

import numpy as np
from gpushmem.kernels import ZeroAdam, ZeroMuon

import gpushmem as shmem

SHAPES, SAMPLES, STEPS = [(32, 64), (64, 64), (64, 8)], 64, 50  # samples of each PE

shmem.init()
me, n = shmem.my_pe(), shmem.n_pes()
rng = np.random.default_rng(0)  # the same on all PEs
teacher, start = ([rng.normal(0, r**-0.5, (r, c)) for r, c in SHAPES] for _ in range(2))
inputs = rng.normal(size=(n, SAMPLES, SHAPES[0][0]))[me]  # this PE's


def outputs(layers):
    """What each layer gets, and at last what comes out."""
    every = [inputs]
    for layer in layers:
        every.append(np.tanh(every[-1] @ layer))
    return every


sizes, wanted = [r * c for r, c in SHAPES], outputs(teacher)[-1]
with (
    ZeroAdam(size=sum(sizes), dtype="float32", lr=0.01) as adam,
    ZeroMuon(shapes=SHAPES, dtype="float32", lr=0.02, weight_decay=0.0) as muon,
):
    for plan, starts in ((adam, np.cumsum([0, *sizes[:-1]])), (muon, muon.starts)):
        parameters, gradients = (shmem.zeros(plan.size, "float32") for _ in range(2))
        views = [slice(at, at + size) for at, size in zip(starts, sizes, strict=True)]
        for view, layer in zip(views, start, strict=True):
            parameters[view] = layer.ravel()
        losses = []
        for _ in range(STEPS):
            layers = [parameters.numpy()[v].reshape(s) for v, s in zip(views, SHAPES, strict=True)]
            every = outputs(layers)
            losses.append(((every[-1] - wanted) ** 2).mean())
            error = 2 * (every[-1] - wanted) / wanted.size
            for k in reversed(range(len(layers))):
                error *= 1 - every[k + 1] ** 2
                gradients[views[k]] = (every[k].T @ error).ravel()
                error = error @ layers[k].T
            plan(gradients, parameters)  # the mean of all PEs' gradients; all get the new ones
        assert losses[-1] < losses[0] / 4
        held = sum(last - first for first, last in plan.parts)
        print(
            f"PE {me}: {type(plan).__name__}, state of {held} of {plan.size} parameters: "
            f"loss {losses[0]:.3f} -> {losses[-1]:.3f}"
        )
shmem.finalize()
