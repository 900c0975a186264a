"""Sample sort of uniformly random int32 and int64, so many bytes of keys on each PE (as ISx)."""

import numpy as np

NAME = "Sample sort"
SIZES = (16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20)
CASES = [{"bytes": nbytes, "dtype": dtype} for dtype in ("int32", "int64") for nbytes in SIZES]
SAMPLES = 64


def label(case):
    nbytes = case["bytes"]
    unit, bits = next(unit for unit in (("MiB", 20), ("KiB", 10)) if nbytes >> unit[1])
    return f"{case['dtype']}, {nbytes >> bits} {unit}"


def keys_of(case, me):
    """Random keys of a PE."""
    size = case["bytes"] // np.dtype(case["dtype"]).itemsize
    most = np.iinfo(case["dtype"]).max
    return np.random.default_rng(me).integers(0, most, size, case["dtype"])


def made(case):
    from gpushmem.kernels import SampleSort

    import gpushmem as shmem

    keys = shmem.to_device(keys_of(case, shmem.my_pe()))
    plan = SampleSort(size=keys.size, dtype=case["dtype"])
    out = shmem.device_array(plan.capacity, case["dtype"])
    return plan, keys, out, shmem.device_array(shmem.n_pes(), "int64")


def nbytes(case, n):
    """Without the few that are left of a uniform distribution: samples, and (n - 1) / n of keys."""
    return (n - 1) * (16 * SAMPLES + case["bytes"] // n)


def fused(case):
    plan, keys, out, received = made(case)
    return plan, lambda: plan(keys, out=out, received=received)


def phases(case):
    """Each as the plan does it, with a barrier behind."""
    from gpushmem.kernels.sample_sort import MERGE

    plan, keys, out, received = made(case)
    mine = [plan.flat(array, 0, keys.size) for array in plan._sorted]
    exchange, other = plan._send[0], plan.flat(plan._other[0], 0, out.size)
    come, parts = (other if plan._rounds % 2 else out), (received, plan._rounds)
    return [
        ("sort", lambda: plan._sort([keys], mine, plan._all, 0)),
        ("split", lambda: plan._divide(mine[0], 0)),
        ("exchange", lambda: exchange(mine[0], plan._counts, out=come, received=received)),
        ("merge", lambda: plan._launch_one(MERGE[False], 0, out, other, out, other, *parts)),
    ]


def mpi(case, comm):
    from mpi4py import MPI

    keys, n = keys_of(case, comm.rank), comm.size
    kind = MPI._typedict[keys.dtype.char]
    samples = np.empty(n * SAMPLES, keys.dtype)
    places = np.arange(SAMPLES) * keys.size // SAMPLES + keys.size // SAMPLES // 2
    quantiles = np.arange(1, n) * SAMPLES

    def call():
        mine = np.sort(keys)
        comm.Allgather([mine[places], kind], [samples, kind])
        samples.sort()
        ends = np.searchsorted(mine, samples[quantiles])
        counts = np.diff(ends, prepend=0, append=mine.size)
        come = np.empty_like(counts)
        comm.Alltoall(counts, come)
        out = np.empty(come.sum(), keys.dtype)
        comm.Alltoallv([mine, (counts, ends_of(counts)), kind], [out, (come, ends_of(come)), kind])
        out.sort()

    return call


def ends_of(counts):
    """Where parts of so many elements begin."""
    return np.cumsum(counts) - counts
