"""The step of Adam with its state divided over PEs, float32: gradients in, parameters out."""

import numpy as np

NAME = "ZeRO step"
SIZES = (16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20)
CASES = [{"bytes": nbytes, "buckets": 1} for nbytes in SIZES]
CASES += [{"bytes": nbytes, "buckets": 8} for nbytes in SIZES[2:]]  # each started by itself


def label(case):
    nbytes, more = case["bytes"], ", 8 buckets" if case["buckets"] > 1 else ""
    return (f"{nbytes >> 20} MiB" if nbytes >= 1 << 20 else f"{nbytes >> 10} KiB") + more


def arrays(case):
    return np.zeros(case["bytes"] // 4, "f4"), np.zeros(case["bytes"] // 4, "f4")


def fused(case):
    from gpushmem.kernels import ZeroAdam

    import gpushmem as shmem

    given = tuple(map(shmem.to_device, arrays(case)))
    size, count = case["bytes"] // 4, case["buckets"]
    plan = ZeroAdam(size=size, dtype="float32", buckets=(size // count,) * count)

    def step():
        for _ in range(count - 1):
            plan.start(*given)
        plan(*given)

    return plan, step


def phases(case):
    """Reduce-scatter, Adam of a part by the same function, all-gather."""
    from gpushmem.kernels import AllGather, ReduceScatter
    from gpushmem.kernels.zero import factors, one_by_one, updating

    import gpushmem as shmem

    update = updating(one_by_one)

    @shmem.jit
    def adam(parameters, gradients, state, rules):
        update(parameters, gradients, state, 0, factors(rules, 5), False)

    me, n = shmem.my_pe(), shmem.n_pes()
    gradients, parameters = map(shmem.to_device, arrays(case))
    part = gradients.size // n
    own, sums = parameters[me * part : (me + 1) * part], shmem.device_array(part, "f4")
    state = shmem.to_device(np.zeros((3, part), "f4"))
    rules = shmem.to_device(np.array([1e-3, 0.9, 0.999, 1e-8, 0, 1 / n, 0]))
    scatter, gather = (kind(size=part, dtype="float32") for kind in (ReduceScatter, AllGather))
    return [
        ("reduce-scatter", lambda: scatter(gradients, out=sums)),
        ("Adam", adam[1, scatter.threads].bind(own, sums, state, rules)),
        ("all-gather", lambda: gather(own, out=parameters)),
    ]


def mpi(case, comm):
    from mpi4py import MPI

    gradients, parameters = arrays(case)
    part = gradients.size // comm.size
    sums, own = np.empty(part, "f4"), np.zeros(part, "f4")
    m, v, large = (np.zeros(part, "f4") for _ in range(3))

    def call():
        comm.Reduce_scatter_block([gradients, MPI.FLOAT], [sums, MPI.FLOAT])
        np.divide(sums, np.float32(comm.size), out=sums)
        np.multiply(m, np.float32(0.9), out=m)
        np.multiply(sums, np.float32(0.1), out=large)
        np.add(m, large, out=m)
        np.multiply(v, np.float32(0.999), out=v)
        np.multiply(sums, sums, out=large)
        np.multiply(large, np.float32(0.001), out=large)
        np.add(v, large, out=v)
        np.sqrt(v, out=large)
        np.add(large, np.float32(1e-8), out=large)
        np.divide(m, large, out=large)
        np.multiply(large, np.float32(1e-3), out=large)
        np.subtract(own, large, out=own)
        comm.Allgather([own, MPI.FLOAT], [parameters, MPI.FLOAT])

    return call
