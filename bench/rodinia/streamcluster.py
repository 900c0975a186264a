"""Stream cluster: local search for centres of points, one candidate after the other.

A kernel finds what each point would gain by a new centre, and what would be lost by closing an old
one; the host decides; a second kernel reassigns the points.
"""

import numpy as np
from numba import cuda, float32, float64

WHAT = "stream cluster, {n} points of 32 features, {candidates} candidates"
SIZES = {
    "full": {"n": 1 << 16, "candidates": 30},
    "short": {"n": 1 << 13, "candidates": 20},
    "tiny": {"n": 1024, "candidates": 10},
}
RESULTS = {"costs": 1e-4, "assigned": 0}
FEATURES, SLOTS, BLOCK = 32, 64, 256  # a slot for each candidate and the first centre
PRICE = 60.0  # of a centre


def data(n, candidates):
    rng = np.random.default_rng(11)
    middles = rng.random((20, FEATURES), np.float32)
    points = middles[rng.integers(0, 20, n)]
    points = points + np.float32(0.1) * rng.standard_normal(points.shape, np.float32)
    return {
        "points": points, "features": np.ascontiguousarray(points.T),
        "costs": ((points - points[0]) ** 2).sum(1), "assigned": np.zeros(n, np.int32),
        "switch": np.zeros(n, np.bool_), "closing": np.zeros(SLOTS, np.bool_),
        "gains": np.zeros(SLOTS),  # by closing a slot; the last: by those that go to the new one
    }  # fmt: skip


@cuda.jit(device=True)
def distance_to(features, i, centre):
    distance = float32(0)
    for k in range(FEATURES):
        difference = features[k, i] - centre[k]
        distance += difference * difference
    return distance


@cuda.jit
def find_gains(features, candidate, costs, assigned, switch, gains):
    centre = cuda.shared.array(FEATURES, float32)
    of_block = cuda.shared.array(SLOTS, float64)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    if t < FEATURES:
        centre[t] = features[t, candidate]
    if t < SLOTS:
        of_block[t] = 0
    cuda.syncthreads()
    if i < costs.size:
        gain = costs[i] - distance_to(features, i, centre)
        switch[i] = gain > 0
        if gain > 0:
            cuda.atomic.add(of_block, SLOTS - 1, gain)
        else:
            cuda.atomic.add(of_block, assigned[i], gain)
    cuda.syncthreads()
    if t < SLOTS and of_block[t] != 0:
        cuda.atomic.add(gains, t, of_block[t])


@cuda.jit
def reassign(features, candidate, slot, costs, assigned, switch, closing):
    centre = cuda.shared.array(FEATURES, float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    if t < FEATURES:
        centre[t] = features[t, candidate]
    cuda.syncthreads()
    if i < costs.size and (switch[i] or closing[assigned[i]]):
        costs[i] = distance_to(features, i, centre)
        assigned[i] = slot


def decided(gains, is_open):
    """The slots to close if the candidate is worth it, else None."""
    by_closing = gains[:-1] + PRICE  # the cost of moving its points is below 0
    closing = is_open & (by_closing > 0)
    return closing if gains[-1] - PRICE + by_closing[closing].sum() > 0 else None


def chosen(n, candidates):
    return np.random.default_rng(12).integers(0, n, candidates)


def launches(d, n, candidates):
    grid = -(-n // BLOCK)
    is_open = np.arange(SLOTS - 1) == 0
    closing = np.zeros(SLOTS, np.bool_)
    for slot, candidate in enumerate(chosen(n, candidates), start=1):
        d.gains.copy_to_device(np.zeros(SLOTS))
        find_gains[grid, BLOCK](d.features, candidate, d.costs, d.assigned, d.switch, d.gains)
        found = decided(d.gains.copy_to_host(), is_open)
        if found is None:
            continue
        is_open = is_open & ~found
        is_open[slot] = True
        closing[:-1] = found
        d.closing.copy_to_device(closing)
        reassign[grid, BLOCK](d.features, candidate, slot, d.costs, d.assigned, d.switch, d.closing)


def calls(c, h, n, candidates):
    which = chosen(n, candidates).astype(np.int32)
    c.search(n, candidates, which, PRICE, h.points, h.costs, h.assigned, h.switch)


def reference(h, n, candidates):
    is_open = np.arange(SLOTS - 1) == 0
    for slot, candidate in enumerate(chosen(n, candidates), start=1):
        distance = ((h.points - h.points[candidate]) ** 2).sum(1)
        gain = h.costs - distance
        gains = np.bincount(np.where(gain > 0, SLOTS - 1, h.assigned), gain, SLOTS)
        found = decided(gains, is_open)
        if found is not None:
            is_open = is_open & ~found
            is_open[slot] = True
            going = (gain > 0) | found[h.assigned]
            h.costs[going], h.assigned[going] = distance[going], slot
    return {"costs": h.costs, "assigned": h.assigned}
