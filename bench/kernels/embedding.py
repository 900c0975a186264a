"""Embedding bags of 20 rows, float32, the table cut by rows: fused, in launches, in PyTorch."""

import numpy as np

NAME = "embedding bags"
ROWS, MOST = 1 << 17, 20
CASES = [{"bags": bags, "dim": dim} for dim in (64, 256) for bags in (32, 256, 2048)]


def label(case):
    return f"{case['bags']} bags of {case['dim']}"


def nbytes(case, n):
    return 4 * (n - 1) * case["bags"] * (MOST + case["dim"])


def data_of(case, pe, n):
    """This PE's rows of the table, and its bags' numbers."""
    rng = np.random.default_rng(pe)
    table = rng.normal(size=(ROWS // n, case["dim"])).astype("float32")
    return table, rng.integers(0, ROWS, (case["bags"], MOST)).astype("int32")


def made(case):
    from gpushmem.kernels import EmbeddingBags

    import gpushmem as shmem

    sizes = {"bags": case["bags"], "dim": case["dim"], "rows": ROWS, "most": MOST}
    plan = EmbeddingBags(**sizes, dtype="float32")
    given = [shmem.to_device(x) for x in data_of(case, shmem.my_pe(), shmem.n_pes())]
    return plan, *given, shmem.device_array((case["bags"], case["dim"]), "float32")


def fused(case):
    plan, table, numbers, out = made(case)
    return plan, lambda: plan(table, numbers, out=out)


def phases(case):
    from gpushmem.kernels import AllGather, AllToAll, Plan, end
    from gpushmem.kernels.embedding import look_up
    from numba import cuda

    import gpushmem as shmem

    @shmem.jit
    def sum_up(table, numbers, sums, first, index, weights, team, epochs):
        look_up(numbers, first, table.shape[0], False, index, weights)
        for i in range(cuda.threadIdx.x // 32, numbers.shape[0], (cuda.blockDim.x + 31) // 32):
            shmem.sum_rows_warp(sums[i], table, index[i], weights[i])
        end(epochs)

    @shmem.jit
    def add(came, out, team, epochs):
        shmem.reduce_rows_block(out, came, "sum")
        end(epochs)

    (whole, table, numbers, out), n = made(case), shmem.n_pes()
    plan = Plan(threads=whole.threads)
    bags, dim = out.shape
    gather, exchange = (
        AllGather(size=bags * MOST, dtype="int32"),
        AllToAll(size=bags * dim, dtype="float32"),
    )
    every, index = (shmem.device_array((n * bags, MOST), "int32") for _ in range(2))
    weights = shmem.to_device(np.ones((n * bags, MOST), "float32"))
    sums, came = (shmem.device_array((n, bags * dim), "float32") for _ in range(2))
    flat, rows = (every.reshape(-1), sums.reshape(-1), came.reshape(-1)), sums.reshape(-1, dim)
    mine, result, first = numbers.reshape(-1), out.reshape(-1), whole.rows.start
    return [
        ("all-gather", lambda: gather(mine, out=flat[0])),
        ("sum up", lambda: plan.launch(sum_up, 0, table, every, rows, first, index, weights)),
        ("all-to-all", lambda: exchange(flat[1], out=flat[2])),
        ("add", lambda: plan.launch(add, 0, came, result)),
    ]


def mpi(case, comm):
    import torch
    from mpi4py import MPI
    from torch.nn.functional import embedding_bag

    torch.set_num_threads(1)
    n, me, (rows, numbers) = comm.size, comm.rank, data_of(case, comm.rank, comm.size)
    table, first = torch.from_numpy(rows), me * (ROWS // n)
    every = np.empty((n * case["bags"], MOST), "int32")
    came = np.empty((n, case["bags"], case["dim"]), "float32")

    def call():
        comm.Allgather([numbers, MPI.INT32_T], [every, MPI.INT32_T])
        mine = (every >= first) & (every < first + len(rows))
        many = mine.sum(axis=1)
        given = torch.from_numpy(every[mine] - first), torch.from_numpy(np.cumsum(many) - many)
        sums = embedding_bag(given[0].long(), table, given[1], mode="sum").numpy()
        comm.Alltoall([sums, MPI.FLOAT], [came, MPI.FLOAT])
        came.sum(axis=0)

    return call
