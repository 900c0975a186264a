"""Jacobi iteration with halo exchange: one kernel, separate launches, NumPy with mpi4py."""

from functools import cache
from math import prod

import numpy as np

NAME = "Jacobi iteration"
ITERATIONS = 50
CASES = [
    {"shape": (128, 128), "dtype": "float32"},
    {"shape": (256, 256), "dtype": "float32"},
    {"shape": (512, 512), "dtype": "float32"},
    {"shape": (1024, 1024), "dtype": "float32"},
    {"shape": (2048, 4096), "dtype": "float32"},
    {"shape": (128, 128, 128), "dtype": "float32"},
]


def label(case):
    return f"{' x '.join(map(str, case['shape']))} {case['dtype']}, {ITERATIONS} iterations"


def nbytes(case, n):
    from gpushmem.kernels.jacobi import smallest_faces

    grid = smallest_faces(case["shape"], n)
    local = [-(-cells // parts) for cells, parts in zip(case["shape"], grid, strict=True)]
    faces = sum(
        min(parts - 1, 2) * prod(local) // cells for cells, parts in zip(local, grid, strict=True)
    )
    return ITERATIONS * faces * np.dtype(case["dtype"]).itemsize


def initial(case):
    """A field with hot and cold walls."""
    field = np.zeros([cells + 2 for cells in case["shape"]], case["dtype"])
    field[0], field[..., 0] = 1, 0.5
    return field


def fused(case):
    from gpushmem.kernels import Jacobi

    plan = Jacobi(shape=case["shape"], dtype=case["dtype"])
    u = plan.scatter(initial(case))
    return plan, lambda: plan(u, ITERATIONS)


def phases(case):
    """What `steps` launches in turn, sweeps first: as many launches, and only two barriers.

    So phases are shown at their best: nothing waits between a sweep and the next, and what comes
    out is no state of the field.
    """
    sweeps, exchanges = steps(case)

    def each(calls):
        for k in range(ITERATIONS):
            calls[k % 2]()

    return [("sweeps", lambda: each(sweeps)), ("exchanges", lambda: each(exchanges))]


def steps(case):
    """Sweeps and exchanges, of even iterations and odd ones; each alone a launch."""
    from gpushmem.kernels import Jacobi

    plans = [Jacobi(shape=case["shape"], dtype=case["dtype"]) for _ in range(2)]
    fields = [plan.scatter(initial(case)) for plan in plans]
    flat = [x if x.ndim == 3 else x.reshape(x.shape[0], 1, x.shape[1]) for x in fields]
    weight = np.dtype(case["dtype"]).type(1 / (2 * len(case["shape"])))
    # A sweep alone never waits: it runs thread by thread, each in strides, so one thread is best.
    config = plans[0].blocks, 1, 0
    sweeps = [sweep_kernel()[config].bind(new, old, weight) for old, new in (flat, flat[::-1])]
    exchanges = [lambda: plans[1].exchange(fields[1]), lambda: plans[0].exchange(fields[0])]
    return sweeps, exchanges


@cache
def sweep_kernel():
    from gpushmem.kernels.jacobi import inner_rows, relax
    from numba import cuda

    import gpushmem as shmem

    @shmem.jit
    def sweep(new, old, weight):
        top, bottom = inner_rows(new)
        for i in range(1 + cuda.blockIdx.x, new.shape[0] - 1, cuda.gridDim.x):
            relax(new, old, weight, i, i + 1, top, bottom)

    return sweep


def mpi(case, comm):
    from mpi4py import MPI

    ndim = len(case["shape"])
    grid = MPI.Compute_dims(comm.size, ndim)
    cart = comm.Create_cart(grid)
    cells = [
        np.array_split(np.arange(n), parts)[k]
        for n, parts, k in zip(case["shape"], grid, cart.coords, strict=True)
    ]
    block = tuple(slice(c[0], c[-1] + 3) for c in cells)
    fields = [initial(case)[block].copy() for _ in range(2)]
    weight = fields[0].dtype.type(1 / (2 * ndim))

    def at(u, axis, start, stop):
        index = [slice(1, -1)] * ndim
        index[axis] = slice(start, stop)
        return u[tuple(index)]

    def make_step(old, new):
        inner = at(new, 0, 1, -1)
        addends = [at(old, a, *cut) for a in reversed(range(ndim)) for cut in ((0, -2), (2, None))]
        faces = []
        for axis in range(ndim):
            low, high = cart.Shift(axis, 1)
            for pe, edge, halo in ((low, 1, 0), (high, -2, -1)):
                if pe != MPI.PROC_NULL:
                    out, into = (at(new, axis, k, k + 1 or None) for k in (edge, halo))
                    faces.append((pe, axis, out, into, np.empty_like(out), np.empty_like(into)))

        def step():
            np.add(addends[0], addends[1], out=inner)
            for addend in addends[2:]:
                np.add(inner, addend, out=inner)
            np.multiply(inner, weight, out=inner)
            requests = [cart.Irecv(box, pe) for pe, _, _, _, _, box in faces]
            for pe, _, out, _, packed, _ in faces:
                np.copyto(packed, out)
                requests.append(cart.Isend(packed, pe))
            MPI.Request.Waitall(requests)
            for _, _, _, into, _, box in faces:
                np.copyto(into, box)

        return step

    steps = make_step(*fields), make_step(*fields[::-1])

    def call():
        for _ in range(ITERATIONS // 2):
            steps[0]()
            steps[1]()

    return call
