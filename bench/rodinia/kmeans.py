"""K-means: rounds of assigning points to the nearest centre, and of moving centres to the mean.

Features lie as a GPU reads them best, those of one kind of all points together. Blocks add up
their points' features in shared memory before they add to the centres'.
"""

import numpy as np
from numba import cuda, float32, int32

WHAT = "k-means, {n} points of 34 features, 5 centres, {rounds} rounds"
SIZES = {
    "full": {"n": 200_000, "rounds": 5},
    "short": {"n": 20_000, "rounds": 3},
    "tiny": {"n": 500, "rounds": 2},
}
RESULTS = {"centres": 1e-3, "membership": 0}
FEATURES, CENTRES, BLOCK = 34, 5, 256


def data(n, rounds):
    rng = np.random.default_rng(5)
    middles = rng.random((CENTRES, FEATURES), np.float32)
    points = middles[rng.integers(0, CENTRES, n)]
    points = points + np.float32(0.05) * rng.standard_normal(points.shape, np.float32)
    return {
        "points": points, "features": np.zeros((FEATURES, n), np.float32),
        "centres": middles + np.float32(0.02), "membership": np.zeros(n, np.int32),
        "sums": np.zeros((CENTRES, FEATURES), np.float32), "counts": np.zeros(CENTRES, np.int32),
    }  # fmt: skip


@cuda.jit
def turn(features, points):
    i = cuda.grid(1)
    if i < points.shape[0]:
        for k in range(FEATURES):
            features[k, i] = points[i, k]


@cuda.jit
def assign(features, centres, membership):
    i = cuda.grid(1)
    if i < features.shape[1]:
        nearest, least = 0, float32(np.inf)
        for c in range(CENTRES):
            distance = float32(0)
            for k in range(FEATURES):
                difference = features[k, i] - centres[c, k]
                distance += difference * difference
            if distance < least:
                nearest, least = c, distance
        membership[i] = nearest


@cuda.jit
def add_up(features, membership, sums, counts):
    """Each block adds up the points of its stride; a thread owns a feature, others a share."""
    of_block = cuda.shared.array((CENTRES, FEATURES), float32)
    number = cuda.shared.array(CENTRES, int32)
    t = cuda.threadIdx.x
    for k in range(t, CENTRES * FEATURES, cuda.blockDim.x):
        of_block[k // FEATURES, k % FEATURES] = 0
    if t < CENTRES:
        number[t] = 0
    cuda.syncthreads()
    i = cuda.grid(1)
    if i < features.shape[1]:
        c = membership[i]
        cuda.atomic.add(number, c, 1)
        for k in range(FEATURES):
            cuda.atomic.add(of_block, (c, k), features[k, i])
    cuda.syncthreads()
    for k in range(t, CENTRES * FEATURES, cuda.blockDim.x):
        at = k // FEATURES, k % FEATURES
        cuda.atomic.add(sums, at, of_block[at])
    if t < CENTRES:
        cuda.atomic.add(counts, t, number[t])


@cuda.jit
def move(centres, sums, counts):
    c, k = cuda.blockIdx.x, cuda.threadIdx.x
    if counts[c] > 0:
        centres[c, k] = sums[c, k] / float32(counts[c])
    sums[c, k] = 0
    cuda.syncthreads()
    if k == 0:
        counts[c] = 0


def launches(d, n, rounds):
    grid = -(-n // BLOCK)
    turn[grid, BLOCK](d.features, d.points)
    for _ in range(rounds):
        assign[grid, BLOCK](d.features, d.centres, d.membership)
        add_up[grid, BLOCK](d.features, d.membership, d.sums, d.counts)
        move[CENTRES, FEATURES](d.centres, d.sums, d.counts)


def calls(c, h, n, rounds):
    c.cluster(n, rounds, h.points, h.centres, h.membership)


def reference(h, n, rounds):
    for _ in range(rounds):
        distances = ((h.points[:, None] - h.centres[None]) ** 2).sum(2)
        h.membership[:] = distances.argmin(1)
        for c in range(CENTRES):
            h.centres[c] = h.points[h.membership == c].mean(0)
    return {"centres": h.centres, "membership": h.membership}
