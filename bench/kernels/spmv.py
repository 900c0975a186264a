"""Sparse matrices times vectors, float64: a grid's five points, and entries at random."""

import numpy as np

NAME = "sparse matrix x vector"
CASES = [
    *({"grid": side} for side in (64, 256, 1024)),
    *({"rows": rows, "each": 16} for rows in (1024, 16384, 131072)),
]  # rows of a PE


def label(case):
    if "grid" in case:
        return f"grid {case['grid']} x {case['grid']}"
    return f"{case['rows']} rows a PE, {case['each']} each"


def matrix_of(case, pe, n):
    """A PE's rows, with columns of the whole matrix."""
    from scipy import sparse

    if "grid" in case:
        side = case["grid"]
        line = sparse.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(side, side))
        eye = sparse.eye_array(side)
        whole = (sparse.kron(line, eye) + sparse.kron(eye, line)).tocsr()
        rows = side * side // n
        return whole[pe * rows : (pe + 1) * rows].tocsr()
    rows, each = case["rows"], case["each"]
    rng, starts = np.random.default_rng(pe), each * np.arange(rows + 1)
    # Half of a row's columns are in its neighbourhood, the others anywhere.
    near = pe * rows + np.arange(rows)[:, None] + rng.integers(-50, 50, (rows, each // 2))
    columns = np.concatenate([near, rng.integers(0, n * rows, (rows, each // 2))], axis=1)
    columns = np.sort(columns % (n * rows), axis=1).ravel()
    return sparse.csr_array((rng.normal(size=columns.size), columns, starts), (rows, n * rows))


def nbytes(case, n):
    """What PE 0 sends."""
    wanted = [needed(matrix_of(case, pe, n), 0, n) for pe in range(1, n)]
    return 8 * sum(map(len, wanted))


def needed(matrix, pe, n):
    """The columns of a PE that a matrix has."""
    size = matrix.shape[1] // n
    columns = np.unique(matrix.indices)
    return columns[columns // size == pe] - pe * size


def made(case):
    from gpushmem.kernels import SpMV

    import gpushmem as shmem

    plan = SpMV(matrix_of(case, shmem.my_pe(), shmem.n_pes()))
    x = np.random.default_rng(shmem.my_pe()).normal(size=plan.size)
    return plan, shmem.to_device(x), shmem.device_array(plan.size, "float64")


def fused(case):
    plan, x, out = made(case)
    return plan, lambda: plan(x, out=out)


def phases(case):
    """Pack, exchange, own columns, those of others; or copy x behind those, and all columns."""
    from gpushmem.kernels import AllToAllV, Plan, end
    from gpushmem.kernels.spmv import give, product_of_row
    from numba import cuda

    import gpushmem as shmem

    @shmem.jit
    def packed(x, wanted, out, team, epochs):
        give(x, wanted, out, out, False, 0)
        end(epochs)

    @shmem.jit
    def own(x, y, starts, columns, values, team, epochs):
        for r in range(cuda.threadIdx.x, y.size, cuda.blockDim.x):
            y[r] = product_of_row(x, starts, columns, values, r, 0.0)
        end(epochs)

    @shmem.jit
    def others(x, y, rows, starts, columns, values, team, epochs):
        for k in range(cuda.threadIdx.x, rows.size, cuda.blockDim.x):
            y[rows[k]] += product_of_row(x, starts, columns, values, k, 0.0)
        end(epochs)

    @shmem.jit
    def copied(x, out, team, epochs):
        shmem.copy_block(out, x)
        end(epochs)

    whole, x, out = made(case)
    starts, columns, values, rows, _, *far = whole._workspace[:8]
    plan, table, me = Plan(threads=whole.threads), whole._needs.table, shmem.my_pe()
    wanted = shmem.to_device(whole._wanted.astype("uint32"))
    sent, counts = shmem.to_device(np.zeros(wanted.size)), shmem.to_device(table[:, me].copy())
    both = shmem.to_device(np.zeros(table[me].sum() + x.size))
    halo, behind = both[: table[me].sum()], both[table[me].sum() :]
    exchange = AllToAllV(rows=int(table.max()), dtype="float64")
    received = shmem.device_array(shmem.n_pes(), "int64")
    exchanged = [
        ("pack", lambda: plan.launch(packed, 0, x, wanted, sent)),
        ("exchange", lambda: exchange(sent, counts, out=halo, received=received)),
    ]
    if whole.at_once:
        product = lambda: plan.launch(own, 0, both, out, *far)  # noqa: E731
        return [*exchanged, ("copy x", lambda: plan.launch(copied, 0, x, behind)), ("all", product)]
    return [
        *exchanged,
        ("own columns", lambda: plan.launch(own, 0, x, out, starts, columns, values)),
        ("others", lambda: plan.launch(others, 0, halo, out, rows, *far)),
    ]


def mpi(case, comm):
    n, me = comm.size, comm.rank
    matrix = matrix_of(case, me, n).tocsc()
    size = matrix.shape[1] // n
    others = np.delete(np.arange(n), me)
    columns = {pe: needed(matrix, pe, n) for pe in others}
    far = np.concatenate([pe * size + columns[pe] for pe in others] or [np.empty(0, int)])
    own, rest = matrix[:, me * size : (me + 1) * size].tocsr(), matrix[:, far].tocsr()
    wanted = dict(zip(others, comm_of(comm, others, columns), strict=True))
    x, halo, at = np.random.default_rng(me).normal(size=size), np.empty(len(far)), {}
    for pe in others:
        at[pe] = slice(sum(map(len, [columns[k] for k in others if k < pe])), None)

    def call():
        came = [
            comm.Irecv(halo[at[pe]][: len(columns[pe])], pe) for pe in others if len(columns[pe])
        ]
        sent = [comm.Isend(x[wanted[pe]], pe) for pe in others if len(wanted[pe])]
        y = own @ x
        for request in (*came, *sent):
            request.Wait()
        y += rest @ halo

    return call


def comm_of(comm, others, columns):
    """What each of the others needs of this one."""
    every = comm.alltoall([columns.get(pe, np.empty(0, int)) for pe in range(comm.size)])
    return [every[pe] for pe in others]
