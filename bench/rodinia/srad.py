"""SRAD: taking speckles out of an image by anisotropic diffusion.

Each step: the mean and variance of the image, by a reduction of blocks; the diffusion coefficient
of each pixel from its derivatives; the pixel's change. Tiles in shared memory have a halo.
"""

import numpy as np
from numba import cuda, float32

WHAT = "SRAD, {n}^2 pixels, {steps} steps"
SIZES = {
    "full": {"n": 1024, "steps": 10},
    "short": {"n": 256, "steps": 5},
    "tiny": {"n": 64, "steps": 2},
}
RESULTS = {"image": 1e-4}
TILE, EDGED, FRAMED, BLOCK = 16, 17, 18, 256
RATE = np.float32(0.5)
ONE, FOUR, HALF, QUARTER, SIXTEENTH = (np.float32(v) for v in (1, 4, 1 / 2, 1 / 4, 1 / 16))


def data(n, steps):
    rng = np.random.default_rng(9)
    image = np.exp(rng.random((n, n), np.float32))
    spare = {name: np.zeros_like(image) for name in ("c", "north", "south", "west", "east")}
    return {"image": image, "sums": np.zeros((n * n // BLOCK, 2), np.float32), **spare}


@cuda.jit
def add_up(image, sums):
    total = cuda.shared.array(BLOCK, float32)
    squares = cuda.shared.array(BLOCK, float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    value = image[i // image.shape[1], i % image.shape[1]]
    total[t] = value
    squares[t] = value * value
    cuda.syncthreads()
    half = BLOCK // 2
    while half > 0:
        if t < half:
            total[t] += total[t + half]
            squares[t] += squares[t + half]
        cuda.syncthreads()
        half //= 2
    if t == 0:
        sums[cuda.blockIdx.x, 0] = total[0]
        sums[cuda.blockIdx.x, 1] = squares[0]


@cuda.jit
def coefficients(image, c, north, south, west, east, speckle):
    tile = cuda.shared.array((FRAMED, FRAMED), float32)
    x, y = cuda.grid(2)
    tx, ty = cuda.threadIdx.x + 1, cuda.threadIdx.y + 1
    rows, columns = image.shape
    here = image[y, x]
    tile[ty, tx] = here
    if ty == 1:
        tile[0, tx] = image[max(y - 1, 0), x]
    if ty == TILE:
        tile[TILE + 1, tx] = image[min(y + 1, rows - 1), x]
    if tx == 1:
        tile[ty, 0] = image[y, max(x - 1, 0)]
    if tx == TILE:
        tile[ty, TILE + 1] = image[y, min(x + 1, columns - 1)]
    cuda.syncthreads()
    n, s = tile[ty - 1, tx] - here, tile[ty + 1, tx] - here
    w, e = tile[ty, tx - 1] - here, tile[ty, tx + 1] - here
    gradient = (n * n + s * s + w * w + e * e) / (here * here)
    laplace = (n + s + w + e) / here
    numerator = HALF * gradient - SIXTEENTH * (laplace * laplace)
    denominator = ONE + QUARTER * laplace
    q = numerator / (denominator * denominator)
    value = ONE / (ONE + (q - speckle) / (speckle * (ONE + speckle)))
    north[y, x], south[y, x], west[y, x], east[y, x] = n, s, w, e
    c[y, x] = min(max(value, float32(0)), ONE)


@cuda.jit
def diffuse(image, c, north, south, west, east):
    tile = cuda.shared.array((EDGED, EDGED), float32)
    x, y = cuda.grid(2)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    rows, columns = image.shape
    here = c[y, x]
    tile[ty, tx] = here
    if ty == TILE - 1:
        tile[TILE, tx] = c[min(y + 1, rows - 1), x]
    if tx == TILE - 1:
        tile[ty, TILE] = c[y, min(x + 1, columns - 1)]
    cuda.syncthreads()
    change = here * north[y, x] + tile[ty + 1, tx] * south[y, x]
    change += here * west[y, x] + tile[ty, tx + 1] * east[y, x]
    image[y, x] += QUARTER * RATE * change


def launches(d, n, steps):
    tiles, block = (n // TILE, n // TILE), (TILE, TILE)
    for _ in range(steps):
        add_up[n * n // BLOCK, BLOCK](d.image, d.sums)
        total, squares = d.sums.copy_to_host().sum(0, dtype=np.float64)
        mean = total / (n * n)
        speckle = np.float32((squares / (n * n) - mean * mean) / (mean * mean))
        coefficients[tiles, block](d.image, d.c, d.north, d.south, d.west, d.east, speckle)
        diffuse[tiles, block](d.image, d.c, d.north, d.south, d.west, d.east)


def calls(c, h, n, steps):
    c.diffuse(n, steps, RATE, h.image, h.c, h.north, h.south, h.west, h.east)


def reference(h, n, steps):
    image = h.image.astype(np.float64)
    for _ in range(steps):
        speckle = image.var() / image.mean() ** 2
        p = np.pad(image, 1, mode="edge")
        north, south = p[:-2, 1:-1] - image, p[2:, 1:-1] - image
        west, east = p[1:-1, :-2] - image, p[1:-1, 2:] - image
        gradient = (north**2 + south**2 + west**2 + east**2) / image**2
        laplace = (north + south + west + east) / image
        q = (gradient / 2 - laplace**2 / 16) / (1 + laplace / 4) ** 2
        c = np.clip(1 / (1 + (q - speckle) / (speckle * (1 + speckle))), 0, 1)
        p = np.pad(c, 1, mode="edge")
        change = c * north + p[2:, 1:-1] * south + c * west + p[1:-1, 2:] * east
        image += RATE / 4 * change
    return {"image": image}
