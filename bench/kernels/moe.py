"""A layer with a mixture of experts: fused, as three launches, and in NumPy and mpi4py."""

import numpy as np

NAME = "mixture of experts"
EXPERTS, TOP_K = 8, 2
IN_TURN = True  # dispatch and combine alternate
CASES = [
    {"tokens": 16, "hidden": 256},
    {"tokens": 64, "hidden": 256},
    {"tokens": 64, "hidden": 1024},
    {"tokens": 256, "hidden": 512},
    {"tokens": 1024, "hidden": 512},
    {"tokens": 1024, "hidden": 1024},
]
ACTIVATION = "silu"


def label(case):
    return f"{case['tokens']} tokens of {case['hidden']}"


def nbytes(case, n):
    """What a PE sends, there and back, if experts are chosen evenly."""
    return 2 * case["tokens"] * TOP_K * (n - 1) // n * case["hidden"] * 4


def tokens_of(case, pe):
    """A PE's tokens, their experts and weights."""
    rng = np.random.default_rng(pe)
    t = case["tokens"]
    x = rng.normal(size=(t, case["hidden"])).astype("float32")
    experts = rng.random((t, EXPERTS)).argsort(axis=1)[:, :TOP_K].astype("int32")
    weights = rng.random((t, TOP_K)).astype("float32")
    return x, experts, weights / weights.sum(axis=1, keepdims=True)


def matrices_of(case, experts):
    """w1 and w2 of some experts."""
    shape = case["hidden"], 2 * case["hidden"]
    made = [np.random.default_rng(1000 + e).normal(size=(2, *shape)) for e in experts]
    both = np.array(made, "float32").reshape(-1, 2, *shape) / case["hidden"] ** 0.5
    return both[:, 0].copy(), both[:, 1].reshape(-1, shape[1], shape[0]).copy()


def on_device(case, plan):
    """x, experts, weights, w1, w2, out."""
    import gpushmem as shmem

    mine = range(plan.first_expert, plan.first_expert + plan.local_experts)
    arrays = (*tokens_of(case, plan.my_pe), *matrices_of(case, mine))
    out = shmem.device_array((case["tokens"], case["hidden"]), "float32")
    return *(shmem.to_device(array) for array in arrays), out


def sizes(case):
    """What both plans are made with."""
    return {
        "tokens": case["tokens"], "hidden": case["hidden"], "experts": EXPERTS, "top_k": TOP_K,
        "dtype": "float32",
    }  # fmt: skip


def fused(case):
    from gpushmem.kernels import MoE

    plan = MoE(**sizes(case), inner=2 * case["hidden"], activation=ACTIVATION)
    x, experts, weights, w1, w2, out = on_device(case, plan)
    return plan, lambda: plan(x, experts, weights, w1, w2, out=out)


def phases(case, form="throughput"):
    from gpushmem.kernels import ExpertParallel, expert_ffn

    import gpushmem as shmem

    plan = ExpertParallel(**sizes(case), form=form)
    x, experts, weights, w1, w2, out = on_device(case, plan)
    y = shmem.device_array(plan.received.rows.shape, "float32")
    hidden = shmem.device_array((plan.blocks, 256, 2 * case["hidden"]), "float32")
    return [
        ("dispatch", lambda: plan.dispatch(x, experts)),
        (
            "experts",
            lambda: expert_ffn(plan.received, w1, w2, out=y, hidden=hidden, activation=ACTIVATION),
        ),
        ("combine", lambda: plan.combine(y, weights, out=out)),
    ]


def mpi(case, comm):
    from mpi4py import MPI

    me, n = comm.rank, comm.size
    t, hidden = case["tokens"], case["hidden"]
    share = -(-EXPERTS // n)
    local = max(0, min(share, EXPERTS - me * share))
    x, experts, weights = tokens_of(case, me)
    w1, w2 = matrices_of(case, range(me * share, me * share + local))
    pairs, most = t * TOP_K, n * t * min(TOP_K, share)
    going, back, by_choice = (np.empty((pairs, hidden), "float32") for _ in range(3))
    came, made, rows = (np.empty((most, hidden), "float32") for _ in range(3))
    inner, scratch = (np.empty((most, 2 * hidden), "float32") for _ in range(2))
    counts, counts_in = np.zeros((n, share), "int64"), np.empty((n, share), "int64")
    inverse, out = np.empty(pairs, "int64"), np.empty((t, hidden), "float32")
    chosen, first_weight = experts.ravel(), weights[:, 0:1]

    def firsts(sizes):
        return np.cumsum(sizes) - sizes

    def feed_forward(e, x, y):
        h, tmp = inner[: len(x)], scratch[: len(x)]
        np.matmul(x, w1[e], out=h)
        np.negative(h, out=tmp)
        np.exp(tmp, out=tmp)
        tmp += 1
        h /= tmp
        np.matmul(h, w2[e], out=y)

    def call():
        order = np.argsort(chosen, kind="stable")
        counts.flat[:EXPERTS] = np.bincount(chosen, minlength=EXPERTS)
        np.take(x, order // TOP_K, axis=0, out=going, mode="clip")
        comm.Alltoall(counts, counts_in)
        sent, got = counts.sum(axis=1), counts_in.sum(axis=1)
        send_at, recv_at = firsts(sent), firsts(got)
        comm.Alltoallv(
            [going, sent * hidden, send_at * hidden, MPI.FLOAT],
            [came, got * hidden, recv_at * hidden, MPI.FLOAT],
        )
        starts = recv_at[:, None] + np.cumsum(counts_in, axis=1) - counts_in
        for e in range(local):
            total = int(counts_in[:, e].sum())
            if total == 0:
                continue
            places = [slice(a, a + c) for a, c in zip(starts[:, e], counts_in[:, e], strict=True)]
            tile = np.concatenate([came[place] for place in places], out=rows[:total])
            feed_forward(e, tile, made[:total])
            at = 0
            for place, count in zip(places, counts_in[:, e], strict=True):
                came[place] = made[at : at + count]
                at += count
        comm.Alltoallv(
            [came, got * hidden, recv_at * hidden, MPI.FLOAT],
            [back, sent * hidden, send_at * hidden, MPI.FLOAT],
        )
        inverse[order] = np.arange(pairs)
        np.take(back, inverse, axis=0, out=by_choice, mode="clip")
        choices = by_choice.reshape(t, TOP_K, hidden)
        np.multiply(choices[:, 0], first_weight, out=out)
        for j in range(1, TOP_K):
            choices[:, j] *= weights[:, j : j + 1]
            np.add(out, choices[:, j], out=out)

    return call
