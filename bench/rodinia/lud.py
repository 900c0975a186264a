"""LU decomposition in place, by blocks: the one on the diagonal, its row and column, the rest."""

import numpy as np
from numba import cuda, float32

WHAT = "LU decomposition, {n}^2"
SIZES = {"full": {"n": 1024}, "short": {"n": 256}, "tiny": {"n": 64}}
RESULTS = {"m": 1e-4}
TILE = 16


def data(n):
    rng = np.random.default_rng(6)
    return {"m": rng.random((n, n), np.float32) + n * np.eye(n, dtype=np.float32)}


@cuda.jit
def diagonal(m, first):
    tile = cuda.shared.array((TILE, TILE), float32)
    t = cuda.threadIdx.x
    for i in range(TILE):
        tile[i, t] = m[first + i, first + t]
    cuda.syncthreads()
    for i in range(TILE - 1):
        if t > i:
            for k in range(i):
                tile[t, i] -= tile[t, k] * tile[k, i]
            tile[t, i] /= tile[i, i]
        cuda.syncthreads()
        if t > i:
            for k in range(i + 1):
                tile[i + 1, t] -= tile[i + 1, k] * tile[k, t]
        cuda.syncthreads()
    for i in range(TILE):
        m[first + i, first + t] = tile[i, t]


@cuda.jit
def perimeter(m, first):
    """Half of a block's threads do a tile of the row, half one of the column."""
    pivot = cuda.shared.array((TILE, TILE), float32)
    row = cuda.shared.array((TILE, TILE), float32)
    column = cuda.shared.array((TILE, TILE), float32)
    t = cuda.threadIdx.x % TILE
    is_row = cuda.threadIdx.x < TILE
    other = first + (cuda.blockIdx.x + 1) * TILE
    for i in range(TILE):
        if is_row:
            pivot[i, t] = m[first + i, first + t]
            row[i, t] = m[first + i, other + t]
        else:
            column[i, t] = m[other + i, first + t]
    cuda.syncthreads()
    if is_row:
        for i in range(1, TILE):
            for k in range(i):
                row[i, t] -= pivot[i, k] * row[k, t]
    else:
        for i in range(TILE):
            for k in range(i):
                column[t, i] -= column[t, k] * pivot[k, i]
            column[t, i] /= pivot[i, i]
    cuda.syncthreads()
    for i in range(TILE):
        if is_row:
            m[first + i, other + t] = row[i, t]
        else:
            m[other + i, first + t] = column[i, t]


@cuda.jit
def internal(m, first):
    row = cuda.shared.array((TILE, TILE), float32)
    column = cuda.shared.array((TILE, TILE), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    y = first + (cuda.blockIdx.y + 1) * TILE + ty
    x = first + (cuda.blockIdx.x + 1) * TILE + tx
    row[ty, tx] = m[first + ty, x]
    column[ty, tx] = m[y, first + tx]
    cuda.syncthreads()
    total = float32(0)
    for k in range(TILE):
        total += column[ty, k] * row[k, tx]
    m[y, x] -= total


def launches(d, n):
    for first in range(0, n - TILE, TILE):
        rest = (n - first) // TILE - 1
        diagonal[1, TILE](d.m, first)
        perimeter[rest, 2 * TILE](d.m, first)
        internal[(rest, rest), (TILE, TILE)](d.m, first)
    diagonal[1, TILE](d.m, n - TILE)


def calls(c, h, n):
    c.decompose(n, h.m)


def reference(h, n):
    for k in range(n - 1):
        h.m[k + 1 :, k] /= h.m[k, k]
        h.m[k + 1 :, k + 1 :] -= np.outer(h.m[k + 1 :, k], h.m[k, k + 1 :])
    return {"m": h.m}
