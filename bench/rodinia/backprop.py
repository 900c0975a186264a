"""Back-propagation: one step of training a network with one hidden layer.

The first layer is nearly all the work: a product of its weights with the inputs, summed by blocks
in shared memory, then the adjustment of each weight.
"""

import numpy as np
from numba import cuda, float32

WHAT = "back-propagation, {n} inputs, 16 hidden"
SIZES = {"full": {"n": 1 << 20}, "short": {"n": 1 << 16}, "tiny": {"n": 512}}
RESULTS = {"weights": 1e-4, "before": 1e-4}
HIDDEN = HEIGHT = 16
RATE, MOMENTUM = np.float32(0.3), np.float32(0.3)


def data(n):
    rng = np.random.default_rng(1)
    return {
        "x": rng.random(n, np.float32),
        "weights": (rng.random((n, HIDDEN), np.float32) - np.float32(0.5)) / np.float32(n) ** 0.5,
        "before": np.zeros((n, HIDDEN), np.float32),  # the last changes
        "partial": np.zeros((n // HEIGHT, HIDDEN), np.float32),
        "output": rng.random(HIDDEN, np.float32),  # the weights of the one output
        "delta": np.zeros(HIDDEN, np.float32),
    }


@cuda.jit
def layer_forward(x, weights, partial):
    inputs = cuda.shared.array(HEIGHT, float32)
    products = cuda.shared.array((HEIGHT, HIDDEN), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    row = cuda.blockIdx.x * HEIGHT + ty
    if tx == 0:
        inputs[ty] = x[row]
    cuda.syncthreads()
    products[ty, tx] = weights[row, tx] * inputs[ty]
    cuda.syncthreads()
    half = HEIGHT // 2
    while half > 0:
        if ty < half:
            products[ty, tx] += products[ty + half, tx]
        cuda.syncthreads()
        half //= 2
    if ty == 0:
        partial[cuda.blockIdx.x, tx] = products[0, tx]


@cuda.jit
def adjust_weights(delta, x, weights, before):
    tx = cuda.threadIdx.x
    row = cuda.blockIdx.x * HEIGHT + cuda.threadIdx.y
    change = RATE * delta[tx] * x[row] + MOMENTUM * before[row, tx]
    weights[row, tx] += change
    before[row, tx] = change


def hidden_delta(sums, output):
    """The errors of the hidden layer; the network's answer should be 1."""
    hidden = 1 / (1 + np.exp(-sums))
    answer = 1 / (1 + np.exp(-(hidden @ output)))
    error = answer * (1 - answer) * (1 - answer)
    return hidden * (1 - hidden) * output * error


def launches(d, n):
    grid, block = n // HEIGHT, (HIDDEN, HEIGHT)
    layer_forward[grid, block](d.x, d.weights, d.partial)
    delta = hidden_delta(d.partial.copy_to_host().sum(0), d.output.copy_to_host())
    d.delta.copy_to_device(delta.astype(np.float32))
    adjust_weights[grid, block](d.delta, d.x, d.weights, d.before)


def calls(c, h, n):
    c.train(n, h.x, h.weights, h.before, h.output)


def reference(h, n):
    delta = hidden_delta(h.x @ h.weights, h.output)
    change = RATE * np.outer(h.x, delta) + MOMENTUM * h.before
    return {"weights": h.weights + change, "before": change}
