"""Programs whose data are elsewhere: `irregular.py fft`, or `spmv`, `bfs`, `bags`."""

import sys
from types import SimpleNamespace

import numpy as np
from gpushmem.kernels import BFS, FFT, EmbeddingBags, SpMV

import gpushmem as shmem

SIDE = 256  # of a PE's part of a grid, in which each point has four neighbours
VERTICES, EDGES = 1 << 12, 8  # of a PE's part of a random graph, and of a vertex
SHAPE = 256, 256
BAGS = {"rows": 1 << 14, "dim": 64, "bags": 64, "most": 20}


def fft():
    """Rows of ones."""
    plan = FFT(shape=SHAPE)
    rows, columns = (
        shmem.device_array((len(mine), size), "complex64")
        for mine, size in zip((plan.rows, plan.columns), SHAPE[::-1], strict=True)
    )
    rows.copy_from(1)
    return lambda: plan(rows, out=columns)


def spmv():
    """A grid of SIDE x SIDE points on each PE, a ring of PEs."""
    me, n = shmem.my_pe(), shmem.n_pes()
    row, column = np.divmod(np.arange(SIDE * SIDE), SIDE)
    steps = np.array([(-1, 0), (0, -1), (0, 0), (0, 1), (1, 0)]).T[:, None]
    rows, columns = (me * SIDE + row[:, None] + steps[0]), (column[:, None] + steps[1])
    indices = (rows % (n * SIDE) * SIDE + columns % SIDE).ravel()
    matrix = SimpleNamespace(
        indptr=5 * np.arange(SIDE * SIDE + 1), indices=indices,
        data=np.full(indices.size, 0.2, "float32"),
    )  # fmt: skip
    plan = SpMV(matrix)
    x, y = (shmem.ones(SIDE * SIDE, "float32") for _ in range(2))
    return lambda: plan(x, out=y)


def bfs():
    """From vertex 0."""
    ends = np.random.default_rng(shmem.my_pe()).integers(
        0, shmem.n_pes() * VERTICES, VERTICES * EDGES
    )
    plan = BFS(SimpleNamespace(indptr=EDGES * np.arange(VERTICES + 1), indices=ends))
    parents, distances = (shmem.device_array(VERTICES, dtype) for dtype in ("int64", "int32"))
    return lambda: plan(0, parents=parents, distances=distances)


def bags():
    """Rows drawn anew on each PE."""
    plan = EmbeddingBags(**BAGS, dtype="float32")
    table = shmem.ones((len(plan.rows), len(plan.columns)), "float32")
    drawn = np.random.default_rng(shmem.my_pe()).integers(0, BAGS["rows"], (64, 20))
    numbers, out = shmem.to_device(drawn.astype("int32")), shmem.ones((64, 64), "float32")
    return lambda: plan(table, numbers, out=out)


with shmem.session(heap_size="64M"):
    call = {"fft": fft, "spmv": spmv, "bfs": bfs, "bags": bags}[(sys.argv[1:] or ["fft"])[0]]()
    for _ in range(300):
        call()
    shmem.synchronize()
