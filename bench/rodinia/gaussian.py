"""Gaussian elimination: for each column, a kernel for the multipliers and one for what is left."""

import numpy as np
from numba import cuda

WHAT = "Gaussian elimination, {n} unknowns"
SIZES = {"full": {"n": 768}, "short": {"n": 256}, "tiny": {"n": 40}}
RESULTS = {"a": 1e-4, "b": 1e-4}
ROW, TILE = 512, 16


def data(n):
    rng = np.random.default_rng(3)
    a = rng.random((n, n), np.float32) + n * np.eye(n, dtype=np.float32)
    return {"a": a, "b": rng.random(n, np.float32), "m": np.zeros((n, n), np.float32)}


@cuda.jit
def multipliers(m, a, t):
    i = cuda.grid(1) + t + 1
    if i < a.shape[0]:
        m[i, t] = a[i, t] / a[t, t]


@cuda.jit
def eliminate(m, a, b, t):
    x, y = cuda.grid(2)
    column, row = x + t, y + t + 1
    if row < a.shape[0] and column < a.shape[1]:
        a[row, column] -= m[row, t] * a[t, column]
        if x == 0:
            b[row] -= m[row, t] * b[t]


def launches(d, n):
    for t in range(n - 1):
        rows = n - 1 - t
        multipliers[-(-rows // ROW), ROW](d.m, d.a, t)
        grid = -(-(rows + 1) // TILE), -(-rows // TILE)
        eliminate[grid, (TILE, TILE)](d.m, d.a, d.b, t)


def calls(c, h, n):
    c.eliminate(n, h.a, h.b, h.m)


def reference(h, n):
    for t in range(n - 1):
        m = h.a[t + 1 :, t] / h.a[t, t]
        h.a[t + 1 :, t:] -= np.outer(m, h.a[t, t:])
        h.b[t + 1 :] -= m * h.b[t]
    return {"a": h.a, "b": h.b}
