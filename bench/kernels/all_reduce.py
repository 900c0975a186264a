"""All-reduce of float32, of arrays on the device; in place, of symmetric ones."""

import numpy as np

NAME = "All-reduce"
TIMES = 100  # calls in a graph
SIZES = (8, 1 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20)
CASES = [{"bytes": nbytes, "algorithm": None} for nbytes in SIZES]
CASES += [{"bytes": nbytes, "algorithm": "in_place"} for nbytes in SIZES[-4:]]


def label(case):
    nbytes = case["bytes"]
    unit, bits = next(unit for unit in (("MiB", 20), ("KiB", 10), ("B", 0)) if nbytes >> unit[1])
    return f"{nbytes >> bits} {unit}" + (", in place" if case["algorithm"] else "")


def plan_of(case):
    from gpushmem.kernels import AllReduce

    return AllReduce(size=case["bytes"] // 4, dtype="float32", algorithm=case["algorithm"])


def array_of(case):
    import gpushmem as shmem

    size = case["bytes"] // 4
    return shmem.zeros(size, "f4") if case["algorithm"] else shmem.to_device(np.zeros(size, "f4"))


def fused(case):
    plan, x = plan_of(case), array_of(case)
    return plan, lambda: plan(x)


def graph(case):
    """A graph of calls of a plan, and how many it has."""
    import gpushmem as shmem

    plan, x, stream = plan_of(case), array_of(case), shmem.stream()
    plan(x, stream=stream)
    with shmem.capture(stream) as graph:
        for _ in range(TIMES):
            plan(x, stream=stream)
    return lambda: graph.launch(stream), TIMES


def phases(case):
    """One shot: send to all; sum. Two shot: the same with parts, and then sums are sent."""
    import phased

    return phased.all_reduce(case["bytes"] // 4, plan_of(case).algorithm)


def mpi(case, comm):
    from mpi4py import MPI

    x = np.zeros(case["bytes"] // 4, "f4")
    return lambda: comm.Allreduce(MPI.IN_PLACE, [x, MPI.FLOAT])
