"""Ring attention and its gradients, against NumPy."""

import numpy as np
import pytest
from gpushmem.kernels import (
    RingAttention,
    RingAttentionBackward,
    attention_parts,
    ring_attention,
    ring_attention_backward,
)

import gpushmem as shmem
from tests.pes import lateness, repeated, some_of, to_send, whole_warps

TOLERANCE = {"float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}
CASES = [  # tokens of a PE, heads, of keys, their size; options; where sequences end, of 60 each
    (8, 2, 2, 4, {}, None),
    (8, 2, 1, 5, {"causal": True, "tile": (3, 5)}, None),
    (12, 6, 2, 3, {"causal": True}, (0, 7, 7, 33, 50)),
    (7, 2, 2, 4, {"causal": True, "window": 3}, None),
    (6, 3, 1, 4, {"window": 8, "tile": (4, 3)}, (0, 31, 60)),
    (10, 2, 2, 4, {"causal": True, "zigzag": False, "scale": 0.7}, (0, 60)),
    (10, 1, 1, 8, {"zigzag": True, "window": 0}, None),
    (0, 1, 1, 4, {}, None),
    (40, 4, 2, 16, {"causal": True, "tile": (16, 32)}, (0, 20, 59, 60)),
]
LAUNCHES = [(blocks, whole_warps(threads)) for blocks, threads in ((1, 1), (3, 4), (2, 32))]
KERNELS = list(zip(("float32", "bfloat16", "float16"), LAUNCHES, strict=True))


def batch(tokens, heads, shared, size, dtype):
    """q, k, v and dout of the whole batch."""
    rng = np.random.default_rng([tokens, heads, size])
    shapes = [(tokens, of, size) for of in (heads, shared, shared, heads)]
    return [rng.normal(size=shape).astype(dtype) for shape in shapes]


def run(case, dtype, team=shmem.TEAM_WORLD, calls=2, **launch):
    """Make both plans, call them; compare with the references."""
    tokens, heads, shared, size, options, ends = case
    sizes = {"tokens": tokens, "heads": heads, "kv_heads": shared, "head_dim": size}
    given = {**sizes, "dtype": dtype, "team": team, **options, **launch}
    forward, backward = RingAttention(**given), RingAttentionBackward(**given)
    if team.my_pe >= 0:
        n = team.n_pes
        q, k, v, dout = whole = batch(n * tokens, heads, shared, size, dtype)
        ends = None if ends is None else [end * n * tokens // 60 for end in ends]
        mask = {key: options[key] for key in ("causal", "window", "scale") if key in options}
        mask["cu_seqlens"] = ends
        at = forward.positions
        mine = [to_send(x[at]) for x in whole]
        cu = None if ends is None else shmem.to_device(np.array(ends, "int32"))
        out, dq = (shmem.to_device(np.full((tokens, heads, size), -9, dtype)) for _ in range(2))
        dk, dv = (shmem.to_device(np.full((tokens, shared, size), -9, dtype)) for _ in range(2))
        lse = shmem.to_device(np.full((heads, tokens), -9, "float32"))
        for _ in range(calls):
            forward(*mine[:3], out=out, lse=lse, cu_seqlens=cu)
            backward(mine[3], *mine[:3], out, lse, dq=dq, dk=dk, dv=dv, cu_seqlens=cu)
        wanted_out, wanted_lse = ring_attention.reference(q, k, v, **mask)
        wanted = ring_attention_backward.reference(dout, q, k, v, **mask)
        exact = 1e-5 if forward.method == "kernel" or dtype == "float32" else 1e-3
        np.testing.assert_allclose(lse.numpy(), wanted_lse[:, at], atol=exact, rtol=exact)
        pairs = zip((out, dq, dk, dv), (wanted_out, *wanted), strict=True)
        for name, (got, want) in zip(("out", "dq", "dk", "dv"), pairs, strict=True):
            np.testing.assert_allclose(
                got.numpy().astype("float64"), want[at], rtol=0,
                atol=TOLERANCE[dtype] * max(1, np.abs(want).max(initial=0)),
                err_msg=f"{name} {case} {dtype} {launch}, PE {team.my_pe} of {n}",
            )  # fmt: skip
    forward.free()
    backward.free()


# PEs, and whether with few cases.
PES = [(1, True), (3, True)]
PES += [pytest.param(n, False, marks=pytest.mark.sweep) for n in (1, 2, 3, 5, 8)]


@pytest.mark.timeout(400)  # six kernels are compiled
@pytest.mark.parametrize(("n_pes", "few"), PES)
def test_results_and_gradients_are_numpys(run_pes, n_pes, few):
    def body():
        shmem.init()
        for number, case in enumerate(some_of(CASES)):
            if few:  # one kernel each is compiled
                run(case, "float32", blocks=2)
            else:
                dtype, (blocks, threads) = KERNELS[number % 3]
                run(case, dtype, blocks=blocks, threads=threads)
        shmem.finalize()

    run_pes(body, n_pes, timeout=380)


@pytest.mark.parametrize(
    "options", [{}, pytest.param({"causal": True, "window": 5}, marks=pytest.mark.sweep)]
)
def test_many_calls_without_a_barrier_while_pes_are_held_up(run_pes, options):
    """All queries are 0, so each token's result is the mean of what it sees: values of one call."""
    calls, tokens = repeated(100, if_checked=5), 4

    @shmem.jit
    def fill(v, dout, call):
        for i in range(v.shape[0]):
            v[i, 0, 0] = 1000 * shmem.my_pe() + call
            dout[i, 0, 0] = call

    @shmem.jit
    def check(out, dv, means, sums, call, wrong):
        for i in range(out.shape[0]):
            if (
                abs(out[i, 0, 0] - means[i] - call) > 0.01
                or abs(dv[i, 0, 0] - sums[i] * call) > 0.1
            ):
                wrong[0] += 1

    def body():
        shmem.init()
        n, late = shmem.n_pes(), lateness(0.02, 0.001)
        sizes = {"tokens": tokens, "heads": 1, "head_dim": 1, "dtype": "float32", **options}
        forward, backward = RingAttention(blocks=2, **sizes), RingAttentionBackward(**sizes)
        mask = ring_attention.seen(n * tokens, *map(options.get, ("causal", "window")), None)
        weights = mask / mask.sum(1, keepdims=True)
        at, means = forward.positions, weights @ np.repeat(1000.0 * np.arange(n), tokens)
        means, sums = (shmem.to_device(x[at]) for x in (means, weights.sum(0)))
        q, k, v, dout = (to_send(np.zeros((tokens, 1, 1), "float32")) for _ in range(4))
        out, dq, dk, dv = (shmem.device_array((tokens, 1, 1), "float32") for _ in range(4))
        lse = shmem.device_array((1, tokens), "float32")
        wrong = shmem.to_device(np.zeros(1, "int64"))
        for call in range(calls):
            late()
            fill[1, 1](v, dout, call)
            forward(q, k, v, out=out, lse=lse)
            backward(dout, q, k, v, out, lse, dq=dq, dk=dk, dv=dv)
            check[1, 1](out, dv, means, sums, call, wrong)
        result = int(wrong.numpy()[0])
        shmem.finalize()
        return result

    assert run_pes(body, 3, timeout=120) == [0, 0, 0]


@pytest.mark.sweep
def test_two_teams_at_once_and_pes_in_none(run_pes):
    def body():
        shmem.init()
        row, column = shmem.team_split_2d(shmem.TEAM_WORLD, 3)
        odd = shmem.team_split_strided(shmem.TEAM_WORLD, 1, 2, 2)
        for team in (row, column, odd):
            run((6, 2, 1, 4, {"causal": True}, None), "float32", team, calls=5)
        shmem.finalize()

    run_pes(body, 5)


@pytest.mark.cpu_backend  # on GPUs CUDA captures
def test_in_a_graph(run_pes):
    def body():
        shmem.init()
        me, n = shmem.my_pe(), shmem.n_pes()
        q, k, v, _ = batch(6 * n, 2, 2, 4, "float32")
        stream = shmem.stream()
        with RingAttention(tokens=6, heads=2, head_dim=4, dtype="float32") as plan:
            mine = [to_send(x[plan.positions]) for x in (q, k, v)]
            out, lse = (
                shmem.device_array((6, 2, 4), "float32"),
                shmem.device_array((2, 6), "float32"),
            )
            with shmem.capture(stream) as graph:
                for _ in range(2):
                    plan(*mine, out=out, lse=lse, stream=stream)
            for times in range(1, 4):
                mine[2].copy_from(times * v[plan.positions])
                graph.launch(stream)
                wanted = times * ring_attention.reference(q, k, v)[0][plan.positions]
                np.testing.assert_allclose(out.numpy(), wanted, atol=1e-5)
        shmem.finalize()
        return me

    run_pes(body, 3)


def test_blocks_travel_as_far_as_somebody_sees_them():
    for mask, wanted in (
        ((1, 32, 32), [3, 3, 3, 3]),
        ((1, 32, 0), [3, 2, 1, 0]),  # causal, in blocks
        ((2, 32, 0), [3, 3, 3, 3]),  # zig-zag
        ((1, 8, 0), [1, 1, 1, 0]),
        ((1, 0, 0), [0, 0, 0, 0]),
    ):
        assert attention_parts.reach_of(attention_parts.sees(8, 4, *mask)) == wanted
    at = [attention_parts.positions(4, pe, 3, 2).tolist() for pe in range(3)]
    assert at == [[0, 1, 10, 11], [2, 3, 8, 9], [4, 5, 6, 7]]


def test_what_a_pe_sends(run_pes):
    def body():
        shmem.init()
        sizes = {"tokens": 8, "heads": 4, "kv_heads": 2, "head_dim": 4, "dtype": "float16"}
        sent = [
            kind(**sizes, blocks=2, **options).sends()
            for kind in (RingAttention, RingAttentionBackward)
            for options in ({}, {"causal": True, "window": 8})
        ]
        shmem.finalize()
        return sent

    block, grads = 2 * 8 * 2 * 4 * 2, 2 * 8 * 2 * 4 * 4
    ring, last = run_pes(body, 3)[::2]
    assert ring == [(2 * block, 8), (block, 4), (2 * block + 3 * grads, 14), (block + grads, 6)]
    assert last == [(2 * block, 8), (0, 0), (2 * block + 3 * grads, 14), (grads, 2)]


def test_what_does_not_fit(run_pes):
    def body():
        shmem.init()
        sizes = {"tokens": 5, "heads": 4, "head_dim": 4, "dtype": "float32"}
        for kind in (RingAttention, RingAttentionBackward):
            for wrong, message in (
                ({"dtype": "float64"}, "float64; it can be float16, bfloat16, float32"),
                ({"kv_heads": 3}, "kv_heads must divide heads"),
                ({"zigzag": True}, "5 tokens, which zigzag=True halves"),
                ({"window": -1}, "how far a token sees, 0 or more"),
            ):
                with pytest.raises(shmem.ArgumentError, match=message):
                    kind(**{**sizes, **wrong})
        plan = RingAttention(**sizes)
        good = [shmem.device_array((5, 4, 4), "float32") for _ in range(4)]
        lse = shmem.device_array((4, 5), "float32")
        with pytest.raises(shmem.ArgumentError, match=r"lse has shape \(5, 4\) and"):
            plan(*good[:3], out=good[3], lse=shmem.device_array((5, 4), "float32"))
        with pytest.raises(shmem.ArgumentError, match=r"cu_seqlens has .* int64"):
            plan(*good[:3], out=good[3], lse=lse, cu_seqlens=shmem.device_array(3, "int64"))
        shmem.finalize()

    run_pes(body, 1)
