"""The step of Muon, float32: 8 square matrices, each with an owner, products by BLAS."""

import numpy as np

NAME = "Muon step, 8 matrices"
SIZES = (64, 128, 256, 512)
CASES = [{"rows": rows} for rows in SIZES]
MATRICES, RULES = 8, {"lr": 1e-3, "weight_decay": 0.1, "momentum": 0.95}


def label(case):
    return f"{case['rows']} x {case['rows']}"


def arrays(case):
    size = MATRICES * case["rows"] ** 2
    return np.random.default_rng(0).normal(size=size).astype("f4"), np.zeros(size, "f4")


def fused(case):
    from gpushmem.kernels import ZeroMuon

    import gpushmem as shmem

    shapes = [(case["rows"],) * 2] * MATRICES
    plan = ZeroMuon(shapes=shapes, dtype="float32", product_dtype="float32", **RULES)
    given = tuple(map(shmem.to_device, arrays(case)))
    return plan, lambda: plan(*given)


def phases(case):
    """Reduce-scatter; momentum and products of one's own matrices, as the plan does; all-gather."""
    from gpushmem.kernels import AllGather, ReduceScatter

    import gpushmem as shmem

    plan, _ = fused(case)
    me, n = shmem.my_pe(), shmem.n_pes()
    gradients, parameters = map(shmem.to_device, arrays(case))
    part = gradients.size // n
    own, sums = parameters[me * part : (me + 1) * part], shmem.device_array(part, "f4")
    scatter, gather = (kind(size=part, dtype="float32") for kind in (ReduceScatter, AllGather))

    def products():
        for matrix in plan._matrices:
            plan._make_orthogonal(matrix, gradients, 0)

    return [
        ("reduce-scatter", lambda: scatter(gradients, out=sums)),
        ("products", products),
        ("all-gather", lambda: gather(own, out=parameters)),
    ]


def mpi(case, comm):
    from gpushmem.kernels.muon import COEFFICIENTS
    from mpi4py import MPI

    gradients, parameters = arrays(case)
    rows, mine = case["rows"], MATRICES // comm.size
    sums, own, average = (np.zeros((mine, rows, rows), "f4") for _ in range(3))
    a, b, c = map(np.float32, COEFFICIENTS)
    momentum, keep, rate = (
        np.float32(each) for each in (RULES["momentum"], 1 - RULES["lr"] * 0.1, RULES["lr"])
    )

    def update(g, m):
        np.add(m, (g - m) * (1 - momentum), out=m)
        x = g + (m - g) * momentum
        x /= np.linalg.norm(x)
        for _ in range(5):
            y = x @ x.T
            x = a * x + (b * y + c * (y @ y)) @ x
        return x

    def call():
        comm.Reduce_scatter_block([gradients, MPI.FLOAT], [sums, MPI.FLOAT])
        np.divide(sums, np.float32(comm.size), out=sums)
        for k in range(mine):
            own[k] = own[k] * keep - rate * update(sums[k], average[k])
        comm.Allgather([own, MPI.FLOAT], [parameters, MPI.FLOAT])

    return call
