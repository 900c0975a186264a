"""Ring attention and its gradients by PyTorch's attention, in streams' order, against NumPy."""

import numpy as np
import pytest
from gpushmem.kernels import RingAttention, RingAttentionBackward, ring_attention

import gpushmem as shmem
from tests.kernels.test_ring_attention import batch, run
from tests.later import later
from tests.pes import lateness, repeated, to_send

later("torch")
pytestmark = pytest.mark.timeout(200)
CASES = [  # as in test_ring_attention
    (8, 4, 2, 8, {"causal": True}, None),
    (7, 2, 2, 4, {"causal": True, "scale": 0.7}, None),
    (6, 3, 1, 5, {}, None),
    (10, 2, 1, 16, {"zigzag": True}, None),
    (0, 1, 1, 4, {}, None),
    (40, 4, 4, 16, {"causal": True}, None),
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
        (3, CASES[:2], ("float32",)),
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
        run((6, 2, 1, 4, {"causal": True}, None), "float32", team, calls=5, method="library")
    shmem.finalize()


@pytest.mark.sweep
def test_teams_and_pes_in_none(run_pes):
    run_pes(two_at_once, 5, timeout=180)


def in_order(calls):
    """All queries are 0: a result is the mean of what a token sees, values of one call."""
    shmem.init()
    me, n, stream = shmem.my_pe(), shmem.n_pes(), shmem.stream(nonblocking=True)
    sizes = {"tokens": 4, "heads": 2, "head_dim": 4, "dtype": "float32", "method": "library"}
    forward, backward = RingAttention(**sizes), RingAttentionBackward(**sizes)
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
        np.testing.assert_allclose(made, 500 * (n - 1) + call, rtol=1e-5, atol=1e-2)
        np.testing.assert_allclose(grad, call, rtol=1e-4, atol=1e-3)
    shmem.finalize()


@pytest.mark.cpu_backend  # the host looks at memory
@pytest.mark.parametrize("calls", [40, pytest.param(400, marks=pytest.mark.slow)])
def test_many_calls_without_a_barrier_while_pes_are_held_up(run_pes, calls):
    run_pes(in_order, 5, repeated(calls, if_checked=4), timeout=180)


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
    for wrong in ({"method": "library", "window": 3}, {"method": "torch"}):
        for kind in (RingAttention, RingAttentionBackward):
            with pytest.raises(shmem.ArgumentError, match="it can be 'kernel', or 'library' with"):
                kind(**sizes, **wrong)
    sent = []
    for options in ({}, {"causal": True}, {"causal": True, "zigzag": False}):
        plans = [
            kind(**sizes, **options, method="library")
            for kind in (RingAttention, RingAttentionBackward)
        ]
        sent.append([plan.sends() for plan in plans])
    x, lse = shmem.device_array((6, 2, 4), "float16"), shmem.device_array((2, 6), "float32")
    with pytest.raises(shmem.ArgumentError, match=r"make the plan with method='kernel'"):
        plans[0](x, x, x, out=x, lse=lse, cu_seqlens=shmem.device_array(2, "int32"))
    shmem.finalize()
    return sent


def test_what_a_pe_sends_and_what_the_library_is_not_for(run_pes):
    block = 2 * 6 * 2 * 4 * 2
    assert run_pes(refused, 3, timeout=60) == [
        [[(2 * block, 4), (4 * block, 8)], [(2 * block, 4), (4 * block - half, 8)],
         [((2 - me) * block, 4 - 2 * me), (2 * block, 4)]]
        for me, half in enumerate((0, block // 2, block))
    ]  # fmt: skip
