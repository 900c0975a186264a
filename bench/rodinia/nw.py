"""Needleman-Wunsch: the scores of aligning two sequences, along diagonals of tiles.

Tiles of one diagonal depend on those before only; a block has its tile in shared memory and goes
through it along diagonals, too, with a barrier after each.
"""

import numpy as np
from numba import cuda, int32

WHAT = "Needleman-Wunsch, sequences of {n}"
SIZES = {"full": {"n": 4096}, "short": {"n": 1024}, "tiny": {"n": 64}}
RESULTS = {"scores": 0}
TILE, EDGED = 16, 17
PENALTY, LETTERS = np.int32(10), 24


def data(n):
    rng = np.random.default_rng(7)
    similarity = rng.integers(-4, 12, (LETTERS, LETTERS)).astype(np.int32)
    one, other = (rng.integers(0, LETTERS, n) for _ in range(2))
    scores = np.zeros((n + 1, n + 1), np.int32)
    scores[0] = scores[:, 0] = -PENALTY * np.arange(n + 1, dtype=np.int32)
    return {"similar": similarity[one[:, None], other], "scores": scores}


@cuda.jit(device=True)
def best(scores, similar, y, x):
    return max(
        scores[y - 1, x - 1] + similar[y - 1, x - 1],
        scores[y, x - 1] - PENALTY,
        scores[y - 1, x] - PENALTY,
    )


@cuda.jit
def align(scores, similar, diagonal, first_row):
    tile = cuda.shared.array((EDGED, EDGED), int32)
    likeness = cuda.shared.array((TILE, TILE), int32)
    t = cuda.threadIdx.x
    block = first_row + cuda.blockIdx.x
    top, left = block * TILE, (diagonal - block) * TILE
    for i in range(TILE):
        likeness[i, t] = similar[top + i, left + t]
    if t == 0:
        tile[0, 0] = scores[top, left]
    tile[t + 1, 0] = scores[top + t + 1, left]
    tile[0, t + 1] = scores[top, left + t + 1]
    cuda.syncthreads()
    for k in range(TILE):
        if t <= k:
            tile[k - t + 1, t + 1] = best(tile, likeness, k - t + 1, t + 1)
        cuda.syncthreads()
    for k in range(TILE - 2, -1, -1):
        if t <= k:
            tile[TILE - t, t + TILE - k] = best(tile, likeness, TILE - t, t + TILE - k)
        cuda.syncthreads()
    for i in range(TILE):
        scores[top + i + 1, left + t + 1] = tile[i + 1, t + 1]


def launches(d, n):
    blocks = n // TILE
    for diagonal in range(2 * blocks - 1):
        first = max(0, diagonal - blocks + 1)
        align[min(diagonal, blocks - 1) - first + 1, TILE](d.scores, d.similar, diagonal, first)


def calls(c, h, n):
    c.align(n, h.scores, h.similar, int(PENALTY))


def reference(h, n):
    s = h.scores
    for k in range(2, 2 * n + 1):  # along diagonals
        y = np.arange(max(1, k - n), min(n, k - 1) + 1)
        x = k - y
        gap = np.maximum(s[y, x - 1], s[y - 1, x]) - PENALTY
        s[y, x] = np.maximum(s[y - 1, x - 1] + h.similar[y - 1, x - 1], gap)
    return {"scores": s}
