"""Attention to keys that are cut among PEs: fused, as three launches, and in NumPy and mpi4py."""

import numpy as np

NAME = "flash-decode"
HEADS, KV_HEADS, DIM, PAGE_SIZE = 8, 2, 64, 16
CASES = [
    {"batch": batch, "keys": keys} for batch, keys in ((1, 256), (1, 2048), (4, 1024), (4, 4096))
]


def label(case):
    return f"{case['batch']} x {case['keys']} keys a PE"


def nbytes(case, n):
    return (n - 1) * case["batch"] * HEADS * (DIM + 4) * 4


def data_of(case, pe):
    rng = np.random.default_rng(pe)
    batch, pages = case["batch"], case["batch"] * case["keys"] // PAGE_SIZE
    cache = rng.normal(size=(pages, 2, PAGE_SIZE, KV_HEADS, DIM)).astype("float32")
    q = np.random.default_rng(99).normal(size=(batch, 1, HEADS, DIM)).astype("float32")
    tables = rng.permutation(pages).reshape(batch, -1).astype("int32")
    return q, cache, tables, np.full((batch, 1), case["keys"], "int32")


def plan_of(case, team):
    from gpushmem.kernels import FlashDecode

    pages = case["batch"] * case["keys"] // PAGE_SIZE
    return FlashDecode(
        batch=case["batch"], heads=HEADS, kv_heads=KV_HEADS, head_dim=DIM, pages=pages,
        page_size=PAGE_SIZE, most_pages=pages // case["batch"], dtype="float32", team=team,
    )  # fmt: skip


def called(case, team):
    import gpushmem as shmem

    plan = plan_of(case, team)
    given = [shmem.to_device(x) for x in data_of(case, shmem.my_pe())]
    out = shmem.device_array(given[0].shape, "float32")
    return plan, lambda: plan(*given, out=out)


def fused(case):
    import gpushmem as shmem

    return called(case, shmem.TEAM_WORLD)


def phases(case):
    from gpushmem.kernels import AllGather, Plan, end
    from gpushmem.kernels.flash_decode import PAD, merge

    import gpushmem as shmem

    @shmem.jit(collective=True)
    def merged(out, boxes, work, index, weights, team, epochs):
        group = out.shape[2] // KV_HEADS
        for pair in range(boxes.shape[1]):
            head = pair % KV_HEADS * group
            merge(out[pair // KV_HEADS], boxes, pair, 1, head, work, index, weights)
        end(epochs)

    me, n = shmem.my_pe(), shmem.n_pes()
    teams = [shmem.team_split_strided(shmem.TEAM_WORLD, pe, 1, 1) for pe in range(n)]
    _, attend = called(case, teams[me])
    pairs, rows = case["batch"] * KV_HEADS, HEADS // KV_HEADS
    size = pairs * rows * (DIM + PAD)
    part, whole = (shmem.to_device(np.zeros(k * size, "float32")) for k in (1, n))
    gather, plan = AllGather(size=size, dtype="float32"), Plan()
    out = shmem.device_array((case["batch"], 1, HEADS, DIM), "float32")
    scratch = [shmem.device_array((rows, k), kind) for k, kind in
               ((DIM, "float32"), (n, "int32"), (n, "float32"))]  # fmt: skip
    boxes = whole.reshape(n, pairs, rows, DIM + PAD)
    return [
        ("attention", attend),
        ("all-gather", lambda: gather(part, out=whole)),
        ("merge", lambda: plan.launch(merged, 0, out, boxes, *scratch)),
    ]


def mpi(case, comm):
    q, cache, tables, _ = data_of(case, comm.rank)
    group, batch, keys = HEADS // KV_HEADS, case["batch"], case["keys"]
    part = np.zeros((batch, HEADS, DIM + 1), "float32")
    whole = np.zeros((comm.size, batch, HEADS, DIM + 1), "float32")

    def call():
        for b in range(batch):
            k, v = (cache[tables[b], i].reshape(keys, KV_HEADS, DIM) for i in range(2))
            for h in range(KV_HEADS):
                mine = slice(h * group, (h + 1) * group)
                scores = q[b, 0, mine] @ k[:, h].T * np.float32(DIM**-0.5)
                most = scores.max(axis=1, keepdims=True)
                np.exp(scores - most, out=scores)
                total = scores.sum(axis=1, keepdims=True)
                part[b, mine, :DIM] = scores @ v[:, h] / total
                part[b, mine, DIM:] = most + np.log(total)
        comm.Allgather(part, whole)
        lse = whole[..., DIM:]
        weights = np.exp(lse - lse.max(axis=0))
        (whole[..., :DIM] * (weights / weights.sum(axis=0))).sum(axis=0)

    return call
