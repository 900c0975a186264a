"""Rows of 256 bytes to all PEs, of which only the senders know how many: MPI_Alltoallv."""

import numpy as np
from numba import cuda

NAME = "Rows to all"
ROW = 64  # float32
SIZES = (1 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20)
CASES = [{"bytes": nbytes} for nbytes in SIZES]


def label(case):
    nbytes = case["bytes"]
    unit, bits = next(unit for unit in (("MiB", 20), ("KiB", 10)) if nbytes >> unit[1])
    return f"{nbytes >> bits} {unit}"


def counts_of(case, n):
    """Rows for each PE, of each PE: between none and twice the mean; so many bytes of each PE."""
    rows = case["bytes"] // (4 * ROW)
    return np.array([np.random.default_rng(pe).multinomial(rows, shares(n, pe)) for pe in range(n)])


def shares(n, pe):
    """Uneven ones."""
    each = 1 + np.arange(n) % 3 + (pe + np.arange(n)) % 2
    return each / each.sum()


def arrays(case):
    import gpushmem as shmem

    me, n = shmem.my_pe(), shmem.n_pes()
    counts = counts_of(case, n)
    x = shmem.to_device(np.zeros((counts[me].sum(), ROW), "f4"))
    out = shmem.empty((counts.sum(axis=0).max(), ROW), "float32")
    return x, shmem.to_device(counts[me]), out, shmem.device_array(n, "int64")


def plan_of(case):
    from gpushmem.kernels import AllToAllV

    # Phases put rows to where they stay, too.
    how = "put" if case["bytes"] >= 64 << 10 else "direct"
    return AllToAllV(rows=case["bytes"] // (4 * ROW), row=(ROW,), dtype="float32", algorithm=how)


def nbytes(case, n):
    """The mean of the PEs, so that all know it."""
    counts = counts_of(case, n)
    return int(4 * ROW * (counts.sum() - np.trace(counts)) / n)


def fused(case):
    plan, (x, counts, out, received) = plan_of(case), arrays(case)
    return plan, lambda: plan(x, counts, out=out, received=received)


def phases(case):
    """All counts to all; then each PE knows where its rows begin on the others, and puts them."""
    import gpushmem as shmem

    @shmem.jit
    def tell(counts, every):
        shmem.fcollect_block(shmem.TEAM_WORLD, every, counts)

    @shmem.jit
    def put(x, every, out):
        me, n, start = shmem.my_pe(), shmem.n_pes(), 0
        for pe in range(n):
            place = 0
            for source in range(me):
                place += every[source * n + pe]
            count = every[me * n + pe]
            to = out[place * ROW : (place + count) * ROW]
            shmem.put_nbi_block(to, x[start * ROW : (start + count) * ROW], pe)
            start += count
        cuda.syncthreads()

    n, (x, counts, _, _) = shmem.n_pes(), arrays(case)
    mine, every = shmem.array(counts.numpy()), shmem.empty(n * n, "int64")
    out = shmem.empty((n * case["bytes"] // 4,), "float32")
    first, second = tell[1, 128].bind(mine, every), put[1, 128].bind(x.reshape(-1), every, out)
    return [("counts", first), ("put", second)]


def mpi(case, comm):
    from mpi4py import MPI

    all_counts = counts_of(case, comm.size)
    counts, come = all_counts[comm.rank].copy(), np.empty(comm.size, "int64")
    x = np.zeros((counts.sum(), ROW), "f4")
    out = np.empty((all_counts[:, comm.rank].sum(), ROW), "f4")

    def call():
        comm.Alltoall(counts, come)
        sent, received = counts * ROW, come * ROW
        sources = [out, (received, np.cumsum(received) - received), MPI.FLOAT]
        comm.Alltoallv([x, (sent, np.cumsum(sent) - sent), MPI.FLOAT], sources)

    return call
