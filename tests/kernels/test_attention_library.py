"""Ring attention and its gradients by PyTorch's attention, in streams' order, against NumPy."""

import numpy as np
import pytest
from gpushmem.kernels import (
    RingAttention,
    RingAttentionBackward,
    attention_parts,
    ring_attention,
)

import gpushmem as shmem
from tests.kernels.test_ring_attention import batch, run
from tests.later import later
from tests.pes import lateness, repeated, to_send

torch = later("torch")  # in the process that PEs are forked from: to import it takes seconds
pytestmark = pytest.mark.timeout(200)
CASES = [  # as in test_ring_attention
    (8, 4, 2, 8, {"causal": True}, None),
    (7, 2, 2, 4, {"causal": True, "scale": 0.7}, None),
    (6, 3, 1, 5, {}, None),
    (10, 2, 1, 16, {"zigzag": True}, None),
    (0, 1, 1, 4, {}, None),
    (40, 4, 4, 16, {"causal": True}, None),
    (12, 6, 2, 4, {"causal": True}, (0, 7, 7, 33, 50)),
    (7, 2, 2, 4, {"causal": True, "window": 3}, None),
    (6, 3, 1, 4, {"window": 8}, (0, 31, 60)),
    (10, 1, 1, 8, {"zigzag": True, "window": 0}, None),
    (8, 2, 1, 4, {"zigzag": True, "window": 5}, None),
    (8, 2, 1, 4, {"zigzag": True, "causal": True, "window": 3}, (0, 20, 59, 60)),
    (5, 2, 2, 4, {"window": 17}, None),
]
DTYPES = "float32", "bfloat16", "float16"


def every_case(cases, dtypes):
    shmem.init()
    for number, case in enumerate(cases):
        run(case, dtypes[number % len(dtypes)], method="library", blocks=2, calls=3)
    shmem.finalize()


@pytest.mark.parametrize(
    ("n_pes", "cases", "dtypes"),
    [
        (3, (*CASES[:2], *CASES[6:9]), ("float32",)),
        *(pytest.param(n, CASES, DTYPES, marks=pytest.mark.sweep) for n in (1, 2, 3, 5, 8)),
    ],
)
def test_results_and_gradients_are_numpys(run_pes, n_pes, cases, dtypes):
    run_pes(every_case, n_pes, cases, dtypes, timeout=180)


def two_at_once():
    shmem.init()
    row, column = shmem.team_split_2d(shmem.TEAM_WORLD, 3)
    odd = shmem.team_split_strided(shmem.TEAM_WORLD, 1, 2, 2)
    for team in (row, column, odd):
        for options in ({"causal": True}, {"causal": True, "window": 2}):
            run((6, 2, 1, 4, options, None), "float32", team, calls=5, method="library")
    shmem.finalize()


@pytest.mark.sweep
def test_teams_and_pes_in_none(run_pes):
    run_pes(two_at_once, 5, timeout=180)


def in_order(calls, options):
    """All queries are 0: a result is the mean of what a token sees, values of one call."""
    shmem.init()
    me, n, stream = shmem.my_pe(), shmem.n_pes(), shmem.stream(nonblocking=True)
    sizes = {"tokens": 4, "heads": 2, "head_dim": 4, "dtype": "float32", "method": "library"}
    forward, backward = (
        kind(**sizes, **options) for kind in (RingAttention, RingAttentionBackward)
    )
    mask = ring_attention.seen(4 * n, *map(options.get, ("causal", "window")), None)
    weights, owner = mask / mask.sum(1, keepdims=True), np.zeros(4 * n)
    for pe in range(n):
        owner[attention_parts.positions(4, pe, n, forward.chunks)] = 1000 * pe
    means, sums = ((x[forward.positions])[:, None, None] for x in (weights @ owner, weights.sum(0)))
    late, shape = lateness(0.1, 0.005), (4, 2, 4)
    q, k = (to_send(np.zeros(shape, "float32")) for _ in range(2))
    v, dout, out, dq, dk, dv = (to_send(np.zeros(shape, "float32")) for _ in range(6))
    lse, kept = shmem.device_array((2, 4), "float32"), []

    def fill(call, handle):
        late()
        np.asarray(v)[:], np.asarray(dout)[:] = 1000 * me + call, call

    def keep(handle):
        kept.append((np.asarray(out).copy(), np.asarray(dv).copy()))

    for call in range(calls):
        shmem.on_stream(stream, lambda handle, call=call: fill(call, handle))
        forward(q, k, v, out=out, lse=lse, stream=stream)
        backward(dout, q, k, v, out, lse, dq=dq, dk=dk, dv=dv, stream=stream)
        shmem.on_stream(stream, keep)
    stream.synchronize()
    for call, (made, grad) in enumerate(kept):
        np.testing.assert_allclose(made, means + call + 0 * made, rtol=1e-5, atol=1e-2)
        np.testing.assert_allclose(grad, sums * call + 0 * grad, rtol=1e-4, atol=1e-3)
    shmem.finalize()


@pytest.mark.cpu_backend  # the host looks at memory
@pytest.mark.parametrize("calls", [40, pytest.param(400, marks=pytest.mark.slow)])
@pytest.mark.parametrize("options", [{}, {"causal": True, "window": 3, "zigzag": True}])
def test_many_calls_without_a_barrier_while_pes_are_held_up(run_pes, calls, options):
    run_pes(in_order, 5, repeated(calls, if_checked=4), options, timeout=180)


def graph():
    shmem.init()
    n, stream = shmem.n_pes(), shmem.stream()
    q, k, v, _ = batch(6 * n, 2, 1, 4, "float32")
    sizes = {"tokens": 6, "heads": 2, "kv_heads": 1, "head_dim": 4, "dtype": "float32"}
    with RingAttention(**sizes, causal=True, method="library") as plan:
        mine = [to_send(x[plan.positions]) for x in (q, k, v)]
        out, lse = shmem.device_array((6, 2, 4), "float32"), shmem.device_array((2, 6), "float32")
        with shmem.capture(stream) as captured:
            for _ in range(2):
                plan(*mine, out=out, lse=lse, stream=stream)
        for times in range(1, 4):
            mine[2].copy_from(times * v[plan.positions])
            captured.launch(stream)
            wanted = times * ring_attention.reference(q, k, v, causal=True)[0][plan.positions]
            np.testing.assert_allclose(out.numpy(), wanted, atol=1e-5)
    shmem.finalize()


@pytest.mark.cpu_backend  # on GPUs CUDA captures
def test_in_a_graph(run_pes):
    run_pes(graph, 3, timeout=180)


def refused():
    shmem.init()
    sizes = {"tokens": 6, "heads": 2, "head_dim": 4, "dtype": "float16"}
    for kind in (RingAttention, RingAttentionBackward):
        with pytest.raises(shmem.ArgumentError, match="'torch'; it can be kernel or library"):
            kind(**sizes, method="torch")
    sent = []
    whole, zigzag = {"causal": True, "zigzag": False}, {"causal": True, "window": 2, "zigzag": True}
    for options in ({}, {"causal": True}, whole, whole | {"window": 2}, zigzag):
        plans = [
            kind(**sizes, **options, method="library")
            for kind in (RingAttention, RingAttentionBackward)
        ]
        sent.append([plan.sends() for plan in plans])
    x, lse = shmem.device_array((6, 2, 4), "float16"), shmem.device_array((2, 6), "float32")
    for ends in np.zeros(2, "int64"), shmem.device_array((2, 2), "int32"):
        with pytest.raises(shmem.ArgumentError, match="cu_seqlens has shape"):
            plans[0](x, x, x, out=x, lse=lse, cu_seqlens=ends)
    shmem.finalize()
    return sent


def test_what_a_pe_sends_and_what_the_library_is_not_for(run_pes):
    """Of a block what is seen: all, by PEs behind the first half, with a window its last tokens."""
    block, row = 2 * 6 * 2 * 4 * 2, 2 * 2 * 4 * 2
    for me, found in enumerate(run_pes(refused, 3, timeout=60)):
        ahead, behind, near = 2 - me, int(me > 0), (2, 4, 2)[me]
        late = int(me < 2)
        assert found == [
            [(2 * block, 4), (4 * block, 8)],
            [(2 * block - ahead * block // 2, 4), (3 * block, 8)],
            [(ahead * block, 2 * ahead), (2 * block, 4)],
            [(2 * row * late, 2 * late), (2 * row * (late + behind), 2 * (late + behind))],
            [(near * row, near), (2 * near * row, 2 * near)],
        ]
