"""All-reduce, residual and RMSNorm of float32, hidden size 1024."""

import numpy as np

NAME = "All-reduce + residual + RMSNorm"
HIDDEN = 1024
CASES = [{"tokens": 4**k} for k in range(1, 7)]


def label(case):
    nbytes = case["tokens"] * HIDDEN * 4
    size = f"{nbytes >> 20} MiB" if nbytes >= 1 << 20 else f"{nbytes >> 10} KiB"
    return f"{case['tokens']} tokens, {size}"


def arrays(case):
    shape = case["tokens"], HIDDEN
    return np.zeros(shape, "f4"), np.ones(shape, "f4"), np.ones(HIDDEN, "f4"), np.zeros(shape, "f4")


def fused(case):
    from gpushmem.kernels import AllReduceRMSNorm

    import gpushmem as shmem

    *given, out = map(shmem.to_device, arrays(case))
    plan = AllReduceRMSNorm(tokens=case["tokens"], hidden=HIDDEN, dtype="float32")
    return plan, lambda: plan(*given, out=out)


def phases(case):
    from gpushmem.kernels import AllReduce
    from phased import add_and_norm

    import gpushmem as shmem

    given = tuple(map(shmem.to_device, arrays(case)))
    total = AllReduce(size=case["tokens"] * HIDDEN, dtype="float32")
    norm = add_and_norm[case["tokens"], 1].bind(*given, 1e-6)
    return [("all-reduce", lambda: total(given[0])), ("add and norm", norm)]


def mpi(case, comm):
    from mpi4py import MPI

    x, residual, weight, out = arrays(case)
    factor = np.empty((case["tokens"], 1), "f4")

    def call():
        comm.Allreduce(MPI.IN_PLACE, [x, MPI.FLOAT])
        np.add(residual, x, out=residual)
        np.einsum("ij,ij->i", residual, residual, out=factor[:, 0])
        np.divide(factor, HIDDEN, out=factor)
        np.add(factor, np.float32(1e-6), out=factor)
        np.sqrt(factor, out=factor)
        np.divide(residual, factor, out=out)
        np.multiply(out, weight, out=out)

    return call
