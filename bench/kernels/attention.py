"""Causal attention over PEs: a ring in one kernel, all-gather and attention, PyTorch over Gloo."""

import gloo

NAME = "Attention over PEs: causal, keys and values of all PEs"
# Tokens of a PE, heads, heads of keys, their size.
CASES = [
    {"tokens": tokens, "heads": heads, "shared": shared, "size": size}
    for tokens, heads, shared, size in (
        (64, 4, 4, 64), (256, 4, 4, 64), (512, 8, 2, 64), (1024, 8, 8, 64), (2048, 4, 1, 128),
    )
]  # fmt: skip
DTYPE = "float32"


def label(case):
    return "tokens={tokens} heads={heads}/{shared} size={size}".format(**case)


def nbytes(case, n_pes):
    return 8 * (n_pes - 1) * case["tokens"] * case["shared"] * case["size"]


def arrays(case):
    import gpushmem as shmem

    tokens, heads, size = case["tokens"], case["heads"], case["size"]
    shapes = (tokens, heads, size), (tokens, case["shared"], size), (tokens, case["shared"], size)
    q, k, v = (shmem.full(shape, 0.1, DTYPE) for shape in shapes)
    out, lse = shmem.device_array(shapes[0], DTYPE), shmem.device_array((heads, tokens), DTYPE)
    return q, k, v, out, lse


def sizes(case):
    return {
        "tokens": case["tokens"], "heads": case["heads"], "kv_heads": case["shared"],
        "head_dim": case["size"], "dtype": DTYPE,
    }  # fmt: skip


def fused(case):
    from gpushmem.kernels import RingAttention

    (q, k, v, out, lse), plan = arrays(case), RingAttention(**sizes(case), causal=True)
    return plan, lambda: plan(q, k, v, out=out, lse=lse)


def phases(case):
    """All keys and values, then attention by the same tiles, without communication."""
    from gpushmem.kernels import AllGather, RingAttention
    from gpushmem.kernels.ring_attention import attend, finish_rows, start_rows
    from numba import cuda

    import gpushmem as shmem

    @shmem.jit
    def local(q, k, v, out, lse, sums, total, scores, wide, cu, before, after, scale, chunks, team):
        n, rows = shmem.team_n_pes(team), scores.shape[1]
        start_rows(sums, lse, total, chunks, rows)
        for source in range(n):
            attend(
                q, k[source], v[source], sums, lse, total, scores[0], wide[0], cu, before, after,
                scale, chunks, source, team,
            )  # fmt: skip
        cuda.syncthreads()
        finish_rows(out, sums, lse, total, chunks, rows)

    (q, k, v, out, lse), n = arrays(case), shmem.n_pes()
    plan = RingAttention(**sizes(case), causal=True)
    every = [shmem.device_array((n, *k.shape), DTYPE) for _ in range(2)]
    gather = AllGather(size=k.size, dtype=DTYPE)
    masks = plan._masks(None)[:5]
    args = q, *every, out, lse, *plan._workspace, *masks, shmem.TEAM_WORLD
    attention = local[plan.blocks, plan.threads, 0].bind(*args)

    def gather_both():
        gather(k, out=every[0])
        gather(v, out=every[1])

    return [("all-gather", gather_both), ("attention", attention)]


def mpi(case, comm):
    """The peer: PyTorch's attention, and `batch_isend_irecv` over Gloo, a block in each step."""
    import torch
    import torch.distributed as dist

    me, n = comm.rank, comm.size
    gloo.begin(comm)
    tokens, half = case["tokens"], case["tokens"] // 2
    attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    q = torch.full((1, case["heads"], tokens, case["size"]), 0.1)
    mine = torch.full((2, 1, case["shared"], tokens, case["size"]), 0.1)
    group = case["heads"] // case["shared"]

    def attend(q, block, causal):
        k, v = (x.repeat_interleave(group, 1) for x in block)
        out, lse = attention(q, k, v, 0.0, causal)
        return out, lse.unsqueeze(-1)

    def call():
        block = mine
        out, lse = attend(q, block, True)
        for step in range(1, n):
            come = torch.empty_like(block)
            ops = [
                dist.P2POp(dist.isend, block, (me + 1) % n),
                dist.P2POp(dist.irecv, come, (me - 1) % n),
            ]
            for work in dist.batch_isend_irecv(ops):
                work.wait()
            block, early = come, step <= me
            seen = block[..., :half, :] if early else block
            rows = slice(None) if early else slice(half, None)
            more, more_lse = attend(q[..., rows, :], seen, False)
            total = torch.logaddexp(lse[..., rows, :], more_lse)
            out[..., rows, :] = out[..., rows, :] * (lse[..., rows, :] - total).exp()
            out[..., rows, :] += more * (more_lse - total).exp()
            lse[..., rows, :] = total
        return out

    return call
