"""Breadth-first search: levels of a graph, a launch of two kernels for each.

All nodes are looked at in each level; those of the frontier write to their neighbours.
"""

import numpy as np
from numba import cuda

WHAT = "breadth-first search, {n} nodes, 6 edges each"
SIZES = {"full": {"n": 1 << 20}, "short": {"n": 1 << 16}, "tiny": {"n": 1000}}
RESULTS = {"cost": 0}
BLOCK = 512
DEGREE = 6


def data(n):
    rng = np.random.default_rng(2)
    degrees = rng.integers(1, 2 * DEGREE, n).astype(np.int32)
    starts = np.zeros(n, np.int32)
    starts[1:] = np.cumsum(degrees)[:-1]
    mask, cost = np.zeros(n, np.bool_), np.full(n, -1, np.int32)
    mask[0], cost[0] = True, 0
    return {
        "starts": starts, "degrees": degrees,
        "edges": rng.integers(0, n, degrees.sum()).astype(np.int32),
        "mask": mask, "updating": np.zeros(n, np.bool_), "visited": mask.copy(), "cost": cost,
        "go_on": np.zeros(1, np.bool_),
    }  # fmt: skip


@cuda.jit
def expand(starts, degrees, edges, mask, updating, visited, cost):
    i = cuda.grid(1)
    if i < starts.size and mask[i]:
        mask[i] = False
        for k in range(starts[i], starts[i] + degrees[i]):
            neighbour = edges[k]
            if not visited[neighbour]:
                cost[neighbour] = cost[i] + 1
                updating[neighbour] = True


@cuda.jit
def update(mask, updating, visited, go_on):
    i = cuda.grid(1)
    if i < mask.size and updating[i]:
        mask[i] = True
        visited[i] = True
        updating[i] = False
        go_on[0] = True


def launches(d, n):
    grid = -(-n // BLOCK)
    flag = np.ones(1, np.bool_)
    while flag[0]:
        flag[0] = False
        d.go_on.copy_to_device(flag)
        expand[grid, BLOCK](d.starts, d.degrees, d.edges, d.mask, d.updating, d.visited, d.cost)
        update[grid, BLOCK](d.mask, d.updating, d.visited, d.go_on)
        d.go_on.copy_to_host(flag)


def calls(c, h, n):
    c.search(n, h.starts, h.degrees, h.edges, h.mask, h.updating, h.visited, h.cost)


def reference(h, n):
    frontier = [0]
    while frontier:
        following = []
        for i in frontier:
            for k in h.edges[h.starts[i] : h.starts[i] + h.degrees[i]]:
                if h.cost[k] < 0:
                    h.cost[k] = h.cost[i] + 1
                    following.append(k)
        frontier = following
    return {"cost": h.cost}
