"""Pathfinder: the cheapest way through a grid, row by row, each step to one of three neighbours.

A block does many rows in shared memory; its ghost zones, computed by its neighbours as well, shrink
from row to row.
"""

import numpy as np
from numba import cuda, int32

WHAT = "pathfinder, {rows} rows of {columns}"
SIZES = {
    "full": {"rows": 100, "columns": 1 << 19},
    "short": {"rows": 41, "columns": 1 << 15},
    "tiny": {"rows": 41, "columns": 1000},
}
RESULTS = {"result": 0}
BLOCK, PYRAMID = 256, 20


def data(rows, columns):
    rng = np.random.default_rng(8)
    wall = rng.integers(0, 10, (rows, columns)).astype(np.int32)
    spare = np.zeros(columns, np.int32)
    return {"wall": wall, "costs": wall[0].copy(), "other": spare, "result": spare.copy()}


@cuda.jit
def go(wall, source, target, first, count):
    costs = cuda.shared.array(BLOCK, int32)
    following = cuda.shared.array(BLOCK, int32)
    t = cuda.threadIdx.x
    columns = wall.shape[1]
    left = cuda.blockIdx.x * (BLOCK - 2 * count) - count
    x = left + t
    inside = 0 <= x < columns
    if inside:
        costs[t] = source[x]
    cuda.syncthreads()
    west, east = max(t - 1, -left, 0), min(t + 1, columns - 1 - left, BLOCK - 1)
    computed = False
    for k in range(count):
        computed = False
        if k + 1 <= t < BLOCK - 1 - k and inside:
            computed = True
            shortest = min(costs[west], costs[t], costs[east])
            following[t] = shortest + wall[first + k, x]
        cuda.syncthreads()
        if k == count - 1:
            break
        if computed:
            costs[t] = following[t]
        cuda.syncthreads()
    if computed:
        target[x] = following[t]


def launches(d, rows, columns):
    source, target = d.costs, d.other
    for first in range(1, rows, PYRAMID):
        count = min(PYRAMID, rows - first)
        if first + count == rows:
            target = d.result
        go[-(-columns // (BLOCK - 2 * count)), BLOCK](d.wall, source, target, first, count)
        source, target = target, source


def calls(c, h, rows, columns):
    c.find(rows, columns, h.wall, h.costs, h.other, h.result)


def reference(h, rows, columns):
    costs = h.costs
    for row in range(1, rows):
        p = np.pad(costs, 1, mode="edge")
        costs = np.minimum(np.minimum(p[:-2], p[2:]), costs) + h.wall[row]
    return {"result": costs}
