"""All-reduce of float32."""

import numpy as np

NAME = "All-reduce"
CASES = [
    {"bytes": nbytes} for nbytes in (16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20)
]


def label(case):
    nbytes = case["bytes"]
    return f"{nbytes >> 20} MiB" if nbytes >= 1 << 20 else f"{nbytes >> 10} KiB"


def plan_of(case):
    from gpushmem.kernels import AllReduce

    return AllReduce(size=case["bytes"] // 4, dtype="float32")


def nbytes(case, n):
    plan = plan_of(case)
    found = plan.sends()[0]
    plan.free()
    return found


def fused(case):
    import gpushmem as shmem

    plan, x = plan_of(case), shmem.to_device(np.zeros(case["bytes"] // 4, "f4"))
    return plan, lambda: plan(x)


def phases(case):
    """One shot: send to all; sum. Two shot: the same with parts, and then sums are sent."""
    import phased

    return phased.all_reduce(case["bytes"] // 4, plan_of(case).algorithm)


def mpi(case, comm):
    from mpi4py import MPI

    x = np.zeros(case["bytes"] // 4, "f4")
    return lambda: comm.Allreduce(MPI.IN_PLACE, [x, MPI.FLOAT])
