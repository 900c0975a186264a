"""Hotspot: the temperature of a chip, by explicit steps in time.

A block has a tile of the chip in shared memory, makes two steps there, and writes what its ghost
zone, which shrinks from step to step, has left correct.
"""

import numpy as np
from numba import cuda, float32

WHAT = "hotspot, {n}^2 cells, {steps} steps"
SIZES = {
    "full": {"n": 1024, "steps": 30},
    "short": {"n": 256, "steps": 20},
    "tiny": {"n": 50, "steps": 5},
}
RESULTS = {"result": 1e-5}
TILE, PYRAMID = 16, 2
AMBIENT, TWO = np.float32(80), np.float32(2)
RX, RY, RZ, CAP = (np.float32(v) for v in (0.1, 0.12, 0.001, 0.5))  # of a cell: step * 1 / R, ...


def data(n, steps):
    rng = np.random.default_rng(4)
    temperature = AMBIENT + 250 * rng.random((n, n), np.float32)
    return {
        "temperature": temperature, "power": rng.random((n, n), np.float32),
        "other": np.zeros_like(temperature), "result": np.zeros_like(temperature),
    }  # fmt: skip


@cuda.jit
def steps_in_tile(power, source, target, count):
    temperature = cuda.shared.array((TILE, TILE), float32)
    powers = cuda.shared.array((TILE, TILE), float32)
    following = cuda.shared.array((TILE, TILE), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    small = TILE - 2 * count  # rows and columns that a block writes
    top, left = small * cuda.blockIdx.y - count, small * cuda.blockIdx.x - count
    y, x = top + ty, left + tx
    rows, columns = source.shape
    inside = 0 <= y < rows and 0 <= x < columns
    if inside:
        temperature[ty, tx] = source[y, x]
        powers[ty, tx] = power[y, x]
    cuda.syncthreads()
    # The part of the tile on the chip: beyond its edge, cells are as those at the edge.
    first_y, last_y = max(0, -top), min(TILE - 1, rows - 1 - top)
    first_x, last_x = max(0, -left), min(TILE - 1, columns - 1 - left)
    north, south = max(ty - 1, first_y), min(ty + 1, last_y)
    west, east = max(tx - 1, first_x), min(tx + 1, last_x)
    computed = False
    for k in range(count):
        computed = False
        if k + 1 <= tx < TILE - 1 - k and k + 1 <= ty < TILE - 1 - k and inside:
            computed = True
            here = temperature[ty, tx]
            following[ty, tx] = here + CAP * (
                powers[ty, tx]
                + (temperature[south, tx] + temperature[north, tx] - TWO * here) * RY
                + (temperature[ty, east] + temperature[ty, west] - TWO * here) * RX
                + (AMBIENT - here) * RZ
            )
        cuda.syncthreads()
        if k == count - 1:
            break
        if computed:
            temperature[ty, tx] = following[ty, tx]
        cuda.syncthreads()
    if computed:
        target[y, x] = following[ty, tx]


def launches(d, n, steps):
    source, target = d.temperature, d.other
    for first in range(0, steps, PYRAMID):
        count = min(PYRAMID, steps - first)
        if first + count == steps:
            target = d.result
        blocks = -(-n // (TILE - 2 * count))
        steps_in_tile[(blocks, blocks), (TILE, TILE)](d.power, source, target, count)
        source, target = target, source


def calls(c, h, n, steps):
    c.hotspot(n, steps, h.power, h.temperature, h.other, h.result, RX, RY, RZ, CAP, AMBIENT)


def reference(h, n, steps):
    t = h.temperature
    for _ in range(steps):
        p = np.pad(t, 1, mode="edge")
        t = t + CAP * (
            h.power
            + (p[2:, 1:-1] + p[:-2, 1:-1] - 2 * t) * RY
            + (p[1:-1, 2:] + p[1:-1, :-2] - 2 * t) * RX
            + (AMBIENT - t) * RZ
        )
    return {"result": t}
