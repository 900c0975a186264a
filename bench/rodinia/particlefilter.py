"""Particle filter: the place of an object in noisy frames of a video.

In each frame particles move at random, get weights by what the frame shows around them, and are
drawn again by weight: blocks make prefix sums of the weights, each particle searches there.
"""

import math

import numpy as np
from numba import cuda, float64

WHAT = "particle filter, {n} particles, {frames} frames"
SIZES = {
    "full": {"n": 1 << 16, "frames": 8},
    "short": {"n": 1 << 13, "frames": 4},
    "tiny": {"n": 1024, "frames": 2},
}
RESULTS = {"estimates": 1e-6}
BLOCK, SIDE, RADIUS = 512, 128, 5
BACKGROUND, OBJECT = 100.0, 228.0
FACTOR, ADDEND, MODULUS = 1103515245, 12345, 2**31 - 1  # of random numbers


def data(n, frames):
    rng = np.random.default_rng(10)
    video = BACKGROUND + 5 * rng.standard_normal((frames, SIDE, SIDE))
    offsets = np.arange(-RADIUS, RADIUS + 1)
    dy, dx = (a.ravel() for a in np.meshgrid(offsets, offsets, indexing="ij"))
    disk = np.stack([dy, dx], 1)[dy * dy + dx * dx <= RADIUS * RADIUS].astype(np.int32)
    for k in range(frames):
        y, x = SIDE // 2 - 2 * (k + 1), SIDE // 2 + k + 1
        video[k, y + disk[:, 0], x + disk[:, 1]] += OBJECT - BACKGROUND
    middle = np.full(n, SIDE / 2)
    zeros = np.zeros(n)
    return {
        "video": video.clip(0, 255).round().astype(np.int32), "disk": disk,
        "seeds": rng.integers(1, MODULUS, n), "x": middle, "y": middle.copy(),
        "moved_x": zeros, "moved_y": zeros.copy(), "weights": zeros.copy(), "sums": zeros.copy(),
        "totals": np.zeros(n // BLOCK), "estimates": np.zeros((frames, 3)),
    }  # fmt: skip


@cuda.jit(device=True)
def uniform(seeds, i):
    seeds[i] = (FACTOR * seeds[i] + ADDEND) % MODULUS
    return seeds[i] / MODULUS


@cuda.jit(device=True)
def normal(seeds, i):
    u, v = uniform(seeds, i), uniform(seeds, i)
    return math.sqrt(-2 * math.log(u)) * math.cos(2 * math.pi * v)


@cuda.jit
def move(frame, disk, seeds, x, y, moved_x, moved_y, weights, estimate):
    parts = cuda.shared.array((3, BLOCK), float64)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    at_x = x[i] + 1 + 5 * normal(seeds, i)
    at_y = y[i] - 2 + 2 * normal(seeds, i)
    likelihood = 0.0
    for k in range(disk.shape[0]):
        row = min(max(int(math.floor(at_y + 0.5)) + disk[k, 0], 0), SIDE - 1)  # noqa: RUF046
        column = min(max(int(math.floor(at_x + 0.5)) + disk[k, 1], 0), SIDE - 1)  # noqa: RUF046
        pixel = frame[row, column]
        likelihood += ((pixel - BACKGROUND) ** 2 - (pixel - OBJECT) ** 2) / 50
    weight = math.exp(likelihood / disk.shape[0])
    moved_x[i], moved_y[i], weights[i] = at_x, at_y, weight
    parts[0, t], parts[1, t], parts[2, t] = weight * at_x, weight * at_y, weight
    cuda.syncthreads()
    half = BLOCK // 2
    while half > 0:
        if t < half:
            for k in range(3):
                parts[k, t] += parts[k, t + half]
        cuda.syncthreads()
        half //= 2
    if t < 3:
        cuda.atomic.add(estimate, t, parts[t, 0])


@cuda.jit
def prefix_sums(values, sums, totals):
    """Inclusive sums within each block, and the block's total."""
    parts = cuda.shared.array((2, BLOCK), float64)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    now = 0
    parts[0, t] = values[i] if i < values.size else 0.0
    cuda.syncthreads()
    step = 1
    while step < BLOCK:
        value = parts[now, t]
        if t >= step:
            value += parts[now, t - step]
        now = 1 - now
        parts[now, t] = value
        cuda.syncthreads()
        step *= 2
    if i < values.size:
        sums[i] = parts[now, t]
    if t == BLOCK - 1 and totals.size > cuda.blockIdx.x:
        totals[cuda.blockIdx.x] = parts[now, t]


@cuda.jit
def add_before(sums, totals):
    """Add to each block's sums those of the blocks before."""
    if cuda.blockIdx.x > 0:
        sums[cuda.grid(1)] += totals[cuda.blockIdx.x - 1]


@cuda.jit
def draw(sums, moved_x, moved_y, x, y):
    i = cuda.grid(1)
    wanted = (i + 0.5) / x.size * sums[x.size - 1]
    low, high = 0, x.size - 1
    while low < high:
        middle = (low + high) // 2
        if sums[middle] < wanted:
            low = middle + 1
        else:
            high = middle
    x[i], y[i] = moved_x[low], moved_y[low]


def launches(d, n, frames):
    blocks = n // BLOCK
    none = d.totals[:0]
    for k in range(frames):
        move[blocks, BLOCK](
            d.video[k], d.disk, d.seeds, d.x, d.y, d.moved_x, d.moved_y, d.weights, d.estimates[k]
        )
        prefix_sums[blocks, BLOCK](d.weights, d.sums, d.totals)
        prefix_sums[1, BLOCK](d.totals, d.totals, none)
        add_before[blocks, BLOCK](d.sums, d.totals)
        draw[blocks, BLOCK](d.sums, d.moved_x, d.moved_y, d.x, d.y)


def calls(c, h, n, frames):
    c.track(
        n, frames, SIDE, len(h.disk), h.video, h.disk, h.seeds, h.x, h.y, h.moved_x, h.moved_y,
        h.weights, h.sums, h.estimates,
    )  # fmt: skip


def reference(h, n, frames):
    def draw_uniform():
        h.seeds[:] = (FACTOR * h.seeds + ADDEND) % MODULUS
        return h.seeds / MODULUS

    def draw_normal():
        u, v = draw_uniform(), draw_uniform()
        return np.sqrt(-2 * np.log(u)) * np.cos(2 * np.pi * v)

    for k in range(frames):
        x, y = h.x + 1 + 5 * draw_normal(), h.y - 2 + 2 * draw_normal()
        rows = np.floor(y + 0.5).astype(int)[:, None] + h.disk[:, 0]
        columns = np.floor(x + 0.5).astype(int)[:, None] + h.disk[:, 1]
        pixels = h.video[k, rows.clip(0, SIDE - 1), columns.clip(0, SIDE - 1)]
        weights = np.exp((((pixels - BACKGROUND) ** 2 - (pixels - OBJECT) ** 2) / 50).mean(1))
        h.estimates[k] = (weights * x).sum(), (weights * y).sum(), weights.sum()
        sums = weights.cumsum()
        drawn = sums.searchsorted((np.arange(n) + 0.5) / n * sums[-1])
        h.x, h.y = x[drawn], y[drawn]
    return {"estimates": h.estimates}
