"""The step of Adam with its state divided over PEs, float32: gradients in, parameters out."""

import numpy as np

NAME = "ZeRO step"
SIZES = (16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20)
CASES = [{"bytes": nbytes, "buckets": 1} for nbytes in SIZES]
CASES += [{"bytes": nbytes, "buckets": 8} for nbytes in SIZES[2:]]  # each sent by itself


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
    """Reduce-scatter of each bucket, Adam of a part by the same function, all-gather of each."""
    from gpushmem.kernels import AllGather, ReduceScatter
    from gpushmem.kernels.zero import factors, one_by_one, updating

    import gpushmem as shmem

    update = updating(one_by_one)

    @shmem.jit
    def adam(parameters, gradients, state, rules):
        update(parameters, gradients, state, 0, factors(rules, 5), False)

    n, count = shmem.n_pes(), case["buckets"]
    gradients, parameters = map(shmem.to_device, arrays(case))
    bucket = gradients.size // count
    part, buckets = bucket // n, [slice(k * bucket, (k + 1) * bucket) for k in range(count)]
    own, sums = (shmem.to_device(np.zeros(count * part, "f4")) for _ in range(2))
    parts = [slice(k * part, (k + 1) * part) for k in range(count)]
    summed = [(gradients[b], sums[p]) for b, p in zip(buckets, parts, strict=True)]
    gathered = [(own[p], parameters[b]) for b, p in zip(buckets, parts, strict=True)]
    state = shmem.to_device(np.zeros((3, count * part), "f4"))
    rules = shmem.to_device(np.array([1e-3, 0.9, 0.999, 1e-8, 0, 1 / n, 0]))
    scatter, gather = (kind(size=part, dtype="float32") for kind in (ReduceScatter, AllGather))

    def each(plan, pairs):
        for x, out in pairs:
            plan(x, out=out)

    return [
        ("reduce-scatter", lambda: each(scatter, summed)),
        ("Adam", adam[1, scatter.threads].bind(own, sums, state, rules)),
        ("all-gather", lambda: each(gather, gathered)),
    ]


def mpi(case, comm):
    from mpi4py import MPI

    gradients, parameters = (x.reshape(case["buckets"], -1) for x in arrays(case))
    part = gradients.size // comm.size
    sums, own, m, v, large = (np.zeros(part, "f4") for _ in range(5))
    parts = [x.reshape(case["buckets"], -1) for x in (sums, own)]

    def call():
        for bucket, its_sums in zip(gradients, parts[0], strict=True):
            comm.Reduce_scatter_block([bucket, MPI.FLOAT], [its_sums, MPI.FLOAT])
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
        for bucket, its_own in zip(parameters, parts[1], strict=True):
            comm.Allgather([its_own, MPI.FLOAT], [bucket, MPI.FLOAT])

    return call
