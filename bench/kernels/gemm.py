"""Tensor-parallel products of matrices: one kernel, separate launches, and NumPy with MPI."""

NAME = "Products of matrices: all-gather + gemm, gemm + reduce-scatter, gemm + all-reduce"
# Rows of a shard or chunk, columns of the product, inner dimension of a PE.
SHAPES = {
    "all_gather": [(16, 256, 256), (64, 256, 256), (256, 256, 256), (1024, 256, 256),
                   (2048, 512, 512), (4096, 256, 1024)],
    "reduce_scatter": [(16, 256, 256), (64, 256, 256), (256, 256, 256), (1024, 256, 256),
                       (2048, 512, 256), (4096, 1024, 128)],
    "all_reduce": [(16, 256, 256), (64, 256, 256), (256, 256, 256), (1024, 256, 256),
                   (2048, 512, 256), (4096, 512, 256)],
}  # fmt: skip
CASES = [
    {"kernel": kernel, "m": m, "n": n, "k": k}
    for kernel, shapes in SHAPES.items() for m, n, k in shapes
]  # fmt: skip
DTYPE = "float32"


def label(case):
    return f"{case['kernel']} m={case['m']} n={case['n']} k={case['k']}"


def nbytes(case, n_pes):
    if case["kernel"] == "all_gather":
        return 4 * (n_pes - 1) * case["m"] * case["k"]
    once = 4 * (n_pes - 1) * case["m"] * case["n"]
    return once if case["kernel"] == "reduce_scatter" else 2 * once // n_pes


def shapes(case, n_pes):
    """Shapes of a, b and out."""
    m, n, k = case["m"], case["n"], case["k"]
    rows = m if case["kernel"] != "reduce_scatter" else n_pes * m
    rows_out = m if case["kernel"] != "all_gather" else n_pes * m
    return (rows, k), (k, n), (rows_out, n)


def operands(case, pe, n_pes):
    import numpy as np

    rng = np.random.default_rng(pe)
    a, b, out = shapes(case, n_pes)
    return rng.random(a, DTYPE), rng.random(b, DTYPE), np.zeros(out, DTYPE)


def on_device(case):
    import gpushmem as shmem

    return [shmem.to_device(x) for x in operands(case, shmem.my_pe(), shmem.n_pes())]


def fused(case):
    from gpushmem import kernels

    plans = {
        "all_gather": kernels.AllGatherGemm,
        "reduce_scatter": kernels.GemmReduceScatter,
        "all_reduce": kernels.GemmAllReduce,
    }
    plan = plans[case["kernel"]](m=case["m"], n=case["n"], k=case["k"], dtype=DTYPE)
    a, b, out = on_device(case)
    return plan, lambda: plan(a, b, out=out)


def phases(case):
    from gpushmem.kernels import SLOTS, Plan, begin, copy, end, member, sum_in_order, wait_for

    import gpushmem as shmem
    from gpushmem import kernels

    @shmem.jit
    def multiply(a, b, out):
        shmem.gemm_block(out, a, b, False)

    @shmem.jit(collective=True)
    def gather(a, gathered, inbox, arrived, team, epochs):
        """`a` (size,), `gathered` (n, size), `inbox` (SLOTS, n, size), `arrived` (SLOTS, n)."""
        me, n, epoch = shmem.team_my_pe(team), shmem.team_n_pes(team), begin(epochs)
        slot = epoch % SLOTS
        for k in range(1, n):
            pe = member(team, (me - k) % n)
            signal = arrived[slot, me:]
            shmem.put_signal_block(inbox[slot, me], a, signal, epoch, shmem.SIGNAL_SET, pe)
        copy(gathered[me], a)
        for k in range(1, n):
            other = (me + k) % n
            wait_for(arrived[slot, other:], epoch)
            copy(gathered[other], inbox[slot, other])
        end(epochs)

    @shmem.jit(collective=True)
    def reduce_scatter(products, out, inbox, arrived, team, epochs):
        """`products` (n, size), `out` (size,), `inbox` (SLOTS, n, size), `arrived` (SLOTS, n)."""
        me, n, epoch = shmem.team_my_pe(team), shmem.team_n_pes(team), begin(epochs)
        slot = epoch % SLOTS
        for k in range(1, n):
            to = (me + k) % n
            box, signal = inbox[slot, me], arrived[slot, me:]
            pe = member(team, to)
            shmem.put_signal_block(box, products[to], signal, epoch, shmem.SIGNAL_SET, pe)
        copy(out, products[me])
        for k in range(1, n):
            wait_for(arrived[slot, (me + k) % n :], epoch)
        sum_in_order(out, inbox[slot], me, n)
        end(epochs)

    class Exchange(Plan):
        def __init__(self, kernel, size):
            super().__init__(blocks=1)
            self.kernel = kernel
            self.workspace = self.boxes(self.n_pes, size, dtype=DTYPE), self.signals(self.n_pes)

        def __call__(self, src, dst):
            self.launch(self.kernel, 0, src, dst, *self.workspace)

    a, b, out = on_device(case)
    n_pes, config = shmem.n_pes(), (1, 1, 0)
    if case["kernel"] == "all_gather":
        gathered = shmem.device_array((n_pes * case["m"], case["k"]), DTYPE)
        exchange, by_pe = Exchange(gather, a.size), gathered.reshape(n_pes, -1)
        flat = a.reshape(-1)
        return [
            ("all-gather", lambda: exchange(flat, by_pe)),
            ("gemm", multiply[config].bind(gathered, b, out)),
        ]
    if case["kernel"] == "reduce_scatter":
        products = shmem.device_array((a.shape[0], case["n"]), DTYPE)
        exchange, by_pe = Exchange(reduce_scatter, out.size), products.reshape(n_pes, -1)
        flat = out.reshape(-1)
        return [
            ("gemm", multiply[config].bind(a, b, products)),
            ("reduce-scatter", lambda: exchange(by_pe, flat)),
        ]
    exchange = kernels.AllReduce(size=out.size, dtype=DTYPE)
    return [
        ("gemm", multiply[config].bind(a, b, out)),
        ("all-reduce", lambda: exchange(out)),
    ]


def mpi(case, comm):
    import numpy as np

    a, b, out = operands(case, comm.rank, comm.size)
    if case["kernel"] == "all_gather":
        gathered = np.empty((comm.size * case["m"], case["k"]), DTYPE)

        def call():
            comm.Allgather(a, gathered)
            np.matmul(gathered, b, out=out)
            return out

    elif case["kernel"] == "reduce_scatter":
        products = np.empty((a.shape[0], case["n"]), DTYPE)

        def call():
            np.matmul(a, b, out=products)
            comm.Reduce_scatter_block(products, out)
            return out

    else:
        products = np.empty_like(out)

        def call():
            np.matmul(a, b, out=products)
            comm.Allreduce(products, out)
            return out

    return call
