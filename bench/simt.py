"""Kernels on the engine, beside plain Numba loops and Numba's CUDA simulator, in one run;
and kernels that wait, on one core and on all.

python bench/simt.py
"""

import os
import subprocess
import sys
import time
from functools import partial
from itertools import chain

import numpy as np
from foundations import saxpy_loop
from harness import best_of, report, row
from numba import cuda, float32, int32, njit

from gpushmem.artifacts.launch_shape import shape_of
from gpushmem.simt.run import cores
from gpushmem.simt.run.kernel import Kernel
from gpushmem.simt.run.stream import Device

LAUNCHES = 10  # in a row, per synchronisation
WARM = 2  # seconds, until the cores have found to each other
TILE, PADDED = 16, 17
BARRIERS = 10_000
CORES = cores.available()
device = Device()


def launcher(function, grid, block, *args, launches=LAUNCHES, **options):
    """Runs the kernel `launches` times, the last thing before a synchronisation."""
    shape, forms = shape_of(grid, block), {}

    def run():
        n = cores.usable_cores()  # a kernel asks for it when it is made
        kernel = forms.get(n) or forms.setdefault(n, Kernel(function, **options))
        for _ in range(launches):
            device.default.submit(kernel.prepare(shape, args))
        device.synchronize()

    return run


def compare(what, kernel, loop, against, aim="", launches=LAUNCHES, rounds=5):
    """Rows for a kernel on one core and on all, beside a loop on one core."""
    counts = [1] if CORES == 1 else [1, CORES]
    for n in counts:
        os.environ[cores.VARIABLE] = str(n)
        ours, peer = best_of(rounds, kernel, loop)
        ours /= launches
        yield row(f"{what}, {n} core{'s' * (n > 1)}", ours, against, peer, aim, peer / ours)
    del os.environ[cores.VARIABLE]


# --- saxpy


def saxpy(out, a, x, y):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = a * x[i] + y[i]


def saxpy_in_strides(out, a, x, y):
    for i in range(cuda.grid(1), out.size, cuda.gridsize(1)):
        out[i] = a * x[i] + y[i]


def saxpys():
    n = 4 << 20
    x, y = np.arange(n, dtype=np.float32), np.ones(n, np.float32)
    ours, theirs = np.zeros_like(x), np.zeros_like(x)
    kernel = launcher(saxpy, n // 256, 256, ours, np.float32(2), x, y)
    loop = partial(saxpy_loop, theirs, np.float32(2), x, y)
    yield from compare("saxpy, 4 M floats, 256 threads a block", kernel, loop, "njit loop",
                       "speed >= 0.8", rounds=9)  # fmt: skip
    np.testing.assert_array_equal(ours, theirs)
    ours[:] = 0
    kernel = launcher(saxpy_in_strides, 64, 256, ours, np.float32(2), x, y)
    yield from compare("the same, 64 blocks in strides of the grid", kernel, loop, "njit loop",
                       "speed >= 0.8", rounds=9)  # fmt: skip
    np.testing.assert_array_equal(ours, theirs)
    small = 4096
    kernel = launcher(saxpy, small // 256, 256, ours[:small], np.float32(2), x[:small], y[:small])
    (one_thread,) = best_of(3, launcher(saxpy, n // 256, 256, ours, np.float32(2), x, y))
    simulated = simulate("saxpy", small) / small
    ours = one_thread / LAUNCHES / n
    yield row("saxpy, per thread", ours, "CUDA simulator", simulated, "speed >= 100,000",
              simulated / ours)  # fmt: skip


# --- reduction of a block in shared memory


def reduce_block(out, x):
    shared = cuda.shared.array(256, float32)
    t = cuda.threadIdx.x
    shared[t] = x[cuda.grid(1)]
    cuda.syncthreads()
    half = 128
    while half > 0:
        if t < half:
            shared[t] += shared[t + half]
        cuda.syncthreads()
        half //= 2
    if t == 0:
        out[cuda.blockIdx.x] = shared[0]


def reductions():
    blocks = 1024
    x, out = np.ones(256 * blocks, np.float32), np.zeros(blocks, np.float32)
    (ours,) = best_of(5, launcher(reduce_block, blocks, 256, out, x))
    assert (out == 256).all()
    ours /= LAUNCHES * blocks
    simulated = simulate("reduce_block", 256)
    yield row("block reduction, 256 threads", ours, "CUDA simulator", simulated,
              "speed >= 10,000", simulated / ours)  # fmt: skip


SIMULATION = """
import sys, time
import numpy as np
from numba import cuda, float32
{source}
kernel, n = cuda.jit({name}), {n}
x, out = np.ones(n, np.float32), np.zeros(n, np.float32)
args = (out, x) if {name!r} == "reduce_block" else (out, np.float32(2), x, x)
best = float("inf")
for _ in range(2):
    began = time.perf_counter()
    kernel[n // 256, 256](*args)
    best = min(best, time.perf_counter() - began)
print(best)
"""


def simulate(name, n):
    """Seconds the CUDA simulator takes for a kernel of this file, with n threads."""
    import inspect

    code = SIMULATION.format(source=inspect.getsource(globals()[name]), name=name, n=n)
    env = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], env=env, check=True, capture_output=True
    )
    return float(done.stdout)


# --- barriers


def meet(n):
    for _ in range(n):
        cuda.syncthreads()


def barriers():
    for what, lockstep in (("in lockstep", True), ("on fibers", False)):
        run = launcher(meet, 1, 256, BARRIERS, launches=1, lockstep=lockstep)
        (t,) = best_of(3, run)
        yield row(f"syncthreads of 256 threads, {what}", t / BARRIERS, "", None, "<= 2 us", None)


# --- matrix product over tiles


def matmul(a, b, c):
    left = cuda.shared.array((TILE, TILE), float32)
    right = cuda.shared.array((TILE, TILE), float32)
    x, y = cuda.grid(2)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    total = float32(0.0)
    for tile in range(a.shape[1] // TILE):
        left[ty, tx] = a[y, tx + tile * TILE]
        right[ty, tx] = b[ty + tile * TILE, x]
        cuda.syncthreads()
        for k in range(TILE):
            total += left[ty, k] * right[k, tx]
        cuda.syncthreads()
    c[y, x] = total


@njit
def matmul_loops(a, b, c):
    n = a.shape[0]
    for by in range(0, n, TILE):
        for bx in range(0, n, TILE):
            c[by : by + TILE, bx : bx + TILE] = 0
            for bk in range(0, n, TILE):
                for y in range(by, by + TILE):
                    for x in range(bx, bx + TILE):
                        total = c[y, x]
                        for k in range(bk, bk + TILE):
                            total += a[y, k] * b[k, x]
                        c[y, x] = total


def matmuls():
    n = 512
    rng = np.random.default_rng(1)
    a, b = (rng.random((n, n), np.float32) for _ in range(2))
    ours, theirs = np.zeros_like(a), np.zeros_like(a)
    kernel = launcher(matmul, (n // TILE, n // TILE), (TILE, TILE), a, b, ours, launches=1)
    loop = partial(matmul_loops, a, b, theirs)
    yield from compare("tiled matmul, 512^3 float32", kernel, loop, "njit loops over the tiles",
                       "speed >= 0.5", launches=1)  # fmt: skip
    np.testing.assert_allclose(ours, a @ b, rtol=1e-4)
    np.testing.assert_allclose(theirs, a @ b, rtol=1e-4)


# --- others, reported


def pull(pos, i):
    ax = ay = az = float32(0)
    for j in range(pos.shape[0]):
        dx, dy, dz = pos[j, 0] - pos[i, 0], pos[j, 1] - pos[i, 1], pos[j, 2] - pos[i, 2]
        d = dx * dx + dy * dy + dz * dz + float32(0.01)
        w = float32(1) / (d * d)
        ax += w * dx
        ay += w * dy
        az += w * dz
    return ax, ay, az


pull_on_gpu, pull_in_loop = cuda.jit(device=True)(pull), njit(pull)


def nbody(acc, pos):
    i = cuda.grid(1)
    acc[i, 0], acc[i, 1], acc[i, 2] = pull_on_gpu(pos, i)


@njit
def nbody_loop(acc, pos):
    for i in range(pos.shape[0]):
        acc[i, 0], acc[i, 1], acc[i, 2] = pull_in_loop(pos, i)


def histogram(bins, data):
    local = cuda.shared.array(256, int32)
    t = cuda.threadIdx.x
    local[t] = 0
    cuda.syncthreads()
    i = cuda.grid(1)
    while i < data.size:
        cuda.atomic.add(local, data[i], 1)
        i += cuda.gridsize(1)
    cuda.syncthreads()
    cuda.atomic.add(bins, t, local[t])


@njit
def histogram_loop(bins, data):
    for value in data:
        bins[value] += 1


def transpose(out, a):
    tile = cuda.shared.array((TILE, PADDED), float32)
    x, y = cuda.grid(2)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    tile[ty, tx] = a[y, x]
    cuda.syncthreads()
    out[cuda.blockIdx.x * TILE + ty, cuda.blockIdx.y * TILE + tx] = tile[tx, ty]


@njit
def transpose_loop(out, a):
    for y in range(a.shape[0]):
        for x in range(a.shape[1]):
            out[x, y] = a[y, x]


def others():
    rng = np.random.default_rng(2)
    pos = rng.random((2048, 3), np.float32)
    ours, theirs = np.zeros_like(pos), np.zeros_like(pos)
    kernel = launcher(nbody, 8, 256, ours, pos, launches=1)
    loop = partial(nbody_loop, theirs, pos)
    yield from compare("n-body, 2048 bodies", kernel, loop, "njit loops", launches=1)
    np.testing.assert_allclose(ours, theirs, rtol=1e-3)

    data = rng.integers(0, 256, 1 << 22).astype(np.int32)
    ours, theirs = np.zeros(256, np.int32), np.zeros(256, np.int32)
    kernel = launcher(histogram, 64, 256, ours, data, launches=1)
    yield from compare("histogram of 4 M, shared atomics", kernel,
                       partial(histogram_loop, theirs, data), "njit loop", launches=1)  # fmt: skip
    ours[:], theirs[:] = 0, 0
    kernel()
    histogram_loop(theirs, data)
    np.testing.assert_array_equal(ours, theirs)

    a = rng.random((2048, 2048), np.float32)
    ours, theirs = np.zeros_like(a), np.zeros_like(a)
    kernel = launcher(transpose, (128, 128), (TILE, TILE), ours, a, launches=1)
    yield from compare("transpose, 2048^2 float32", kernel, partial(transpose_loop, theirs, a),
                       "njit loops", launches=1)  # fmt: skip
    np.testing.assert_array_equal(ours, a.T)


# --- kernels that wait, on one core and on all


def sum_then_meet(x, out, n):
    """Each block sums for itself; then all meet, and look at the next one's sum."""
    b, t = cuda.blockIdx.x, cuda.threadIdx.x
    total = 0.0
    for k in range(n):
        total = total * 0.999 + x[(b * 131 + t + k) % x.size]
    out[b, t] = total
    cuda.cg.this_grid().sync()
    out[b, t] += out[(b + 1) % cuda.gridDim.x, 0] * 0.5


def sweep(x, y, rounds):
    """Sweeps over an array, the grid meeting after each."""
    grid, first, step = cuda.cg.this_grid(), cuda.grid(1), cuda.gridsize(1)
    for _ in range(rounds):
        for k in range(first, x.size, step):
            left = x[k - 1] if k > 0 else 0.0
            right = x[k + 1] if k + 1 < x.size else 0.0
            y[k] = 0.5 * (left + right) + 0.1 * x[k] * x[k]
        grid.sync()
        for k in range(first, x.size, step):
            x[k] = y[k]
        grid.sync()


def waiting():
    x = np.random.default_rng(3).random(1 << 16) * 0.1
    long, sums = np.tile(x, 16), np.zeros((8, 64))
    cases = [
        ("8 blocks of 64 sum for ms, then meet", sum_then_meet, 8, 64, (x, sums, 20_000)),
        ("sweeps, 16 blocks of 128", sweep, 16, 128, (x, x * 0, 20)),
        ("sweeps, 2 blocks of 128, 8 MB", sweep, 2, 128, (long, long * 0, 20)),
    ]
    for what, function, grid, block, args in cases:
        for lockstep, how in ((True, "loops"), (False, "fibers")):
            times = []
            for n in (CORES, 1):
                os.environ[cores.VARIABLE] = str(n)
                launch = Kernel(function, lockstep=lockstep).prepare(shape_of(grid, block), args)
                warmed = time.perf_counter() + WARM
                while time.perf_counter() < warmed:
                    launch()
                times += best_of(5, launch)
            del os.environ[cores.VARIABLE]
            ours, peer = times
            yield row(
                f"{what}, as {how}, {CORES} cores", ours, "1 core", peer, "speed >= 1.7",
                peer / ours,
            )  # fmt: skip


if __name__ == "__main__":
    rows = chain(saxpys(), reductions(), barriers(), matmuls(), waiting(), others())
    report("simt", rows)
