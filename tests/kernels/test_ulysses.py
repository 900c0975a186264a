"""Heads for tokens and back, and attention on a grid of PEs, against NumPy."""

import numpy as np
import pytest
from gpushmem.kernels import ContextParallel, Ulysses, ring_attention, ulysses

import gpushmem as shmem
from tests.pes import repeated, some_of, to_send, whole_warps

CASES = [  # tokens of a PE, heads of a PE in each part, their size, whether they are rotated
    (5, (2, 1, 1), 4, True), (3, (1, 1, 1), 6, False), (4, (2,), 3, False), (0, (1,), 4, False),
    (33, (4, 2, 2), 8, True), (6, (1, 2), 4, True),
]  # fmt: skip
TOLERANCE = {"float32": 1e-6, "float16": 5e-3, "bfloat16": 4e-2}
# PEs, and whether with few kernels.
PES = [(1, True), (3, True)]
PES += [pytest.param(n, False, marks=pytest.mark.sweep) for n in (1, 2, 3, 5, 8)]


def angles(tokens, size, pe):
    """cos and sin of a PE's tokens."""
    at = (pe * tokens + np.arange(tokens))[:, None] * 100.0 ** -np.linspace(0, 1, size // 2)
    return np.cos(at).astype("float32"), np.sin(at).astype("float32")


def run(case, dtype, team=shmem.TEAM_WORLD, calls=2, **launch):
    """There, where it is NumPy's, and back, where it is what it was."""
    tokens, shares, size, turns = case
    me, n = max(team.my_pe, 0), max(team.n_pes, 1)
    heads = tuple(n * share for share in shares)
    plan = Ulysses(tokens=tokens, heads=heads, head_dim=size, dtype=dtype, team=team, **launch)
    if team.my_pe >= 0:
        every = [
            np.random.default_rng([pe, tokens])
            .normal(size=(tokens, sum(heads), size))
            .astype(dtype)
            for pe in range(n)
        ]
        x, out = to_send(every[me]), shmem.device_array((tokens, sum(heads), size), dtype)
        parts = [to_send(np.full((n * tokens, of, size), -9, dtype)) for of in shares]
        all_angles = [angles(tokens, size, pe) for pe in range(n)]
        cos, sin = map(shmem.to_device, all_angles[me]) if turns else (None, None)
        bits = set()
        for call in range(calls):
            plan._by_four = call % 2 == 1  # as on GPUs: the same bits
            plan.to_heads(x, *parts, cos=cos, sin=sin)
            plan.to_tokens(*parts, out=out, cos=cos, sin=sin)
            bits.add(tuple(array.numpy().tobytes() for array in (*parts, out)))
        assert len(bits) == 1, case
        given = zip(*all_angles, strict=True) if turns else (None, None)
        wanted = ulysses.reference(every, heads, me, *given)
        near = {"rtol": 0, "atol": TOLERANCE[dtype] * 4}
        for got, want in zip(parts, wanted, strict=True):
            np.testing.assert_allclose(
                got.numpy().astype("f8"), want.astype("f8"), **near, err_msg=f"{case} {dtype}"
            )
        np.testing.assert_allclose(out.numpy().astype("f8"), every[me].astype("f8"), **near)
    plan.free()


@pytest.mark.parametrize(("n_pes", "few"), PES)
def test_heads_of_all_tokens_and_back(run_pes, n_pes, few):
    def body():
        shmem.init()
        for number, case in enumerate(some_of(CASES)):
            if few:
                run(case, "float32", blocks=2)
            else:
                blocks, threads = ((1, 32), (3, 4), (2, 1))[number % 3]
                dtype = ("float32", "bfloat16")[number % 2]
                run(case, dtype, blocks=blocks, threads=whole_warps(threads))
        shmem.finalize()

    run_pes(body, n_pes)


def test_many_calls_without_a_barrier(run_pes):
    calls = repeated(300, if_checked=5)

    def body():
        shmem.init()
        me, n = shmem.my_pe(), shmem.n_pes()
        rng = np.random.default_rng(me)
        plan = Ulysses(tokens=2, heads=(n,), head_dim=2, dtype="float32", blocks=2)
        x = to_send(np.zeros((2, n, 2), "float32"))
        out = shmem.device_array((2, n, 2), "float32")
        part = to_send(np.zeros((2 * n, 1, 2), "float32"))
        wanted = np.repeat(1000 * np.arange(n), 4).reshape(2 * n, 1, 2) + 10 * me
        for call in range(calls):
            heads = np.arange(n)[None, :, None] * 10
            x.copy_from(np.broadcast_to(1000 * me + heads + call, (2, n, 2)).astype("float32"))
            if rng.random() < 0.02:
                shmem.synchronize()
            plan.to_heads(x, part)
            plan.to_tokens(part, out=out)
            if call % 10 == 0:
                np.testing.assert_array_equal(part.numpy(), wanted + call)
                np.testing.assert_array_equal(out.numpy(), x.numpy())
        shmem.finalize()

    run_pes(body, 3)


@pytest.mark.parametrize(
    ("n_pes", "wide", "options"),
    [
        (4, 2, {"causal": True}),
        pytest.param(6, 2, {"causal": True, "window": 9}, marks=pytest.mark.sweep),
        pytest.param(6, 3, {}, marks=pytest.mark.sweep),
    ],
)
def test_attention_on_a_grid_of_pes(run_pes, n_pes, wide, options):
    def body():
        shmem.init()
        n, tokens, heads, shared, size = shmem.n_pes(), 4, 2 * wide, wide, 4
        row, column = shmem.team_split_2d(shmem.TEAM_WORLD, wide)
        rng = np.random.default_rng(1)
        qkv = rng.normal(size=(n * tokens, heads + 2 * shared, size)).astype("float32")
        plan = ContextParallel(
            tokens=tokens, heads=heads, kv_heads=shared, head_dim=size, dtype="float32", rows=row,
            columns=column, **options,
        )  # fmt: skip
        at = plan.positions
        cos, sin = angles(n * tokens, size, 0)
        out = shmem.device_array((tokens, heads, size), "float32")
        lse = shmem.device_array((heads // wide, wide * tokens), "float32")
        for _ in range(3):
            plan(
                to_send(qkv[at]), out=out, lse=lse, cos=shmem.to_device(cos[at]),
                sin=shmem.to_device(sin[at]),
            )  # fmt: skip
        q, k, v = np.split(qkv, [heads, heads + shared], axis=1)
        q, k = (ulysses.rotated(x, cos, sin) for x in (q, k))
        wanted, _ = ring_attention.reference(q, k, v, **options)
        np.testing.assert_allclose(out.numpy(), wanted[at], atol=1e-5)
        plan.free()
        shmem.finalize()

    run_pes(body, n_pes)


@pytest.mark.sweep
def test_two_teams_at_once_and_pes_in_none(run_pes):
    def body():
        shmem.init()
        row, column = shmem.team_split_2d(shmem.TEAM_WORLD, 3)
        odd = shmem.team_split_strided(shmem.TEAM_WORLD, 1, 2, 2)
        for team in (row, column, odd):
            run((5, (2, 1, 1), 4, True), "float32", team, calls=20)
        shmem.finalize()

    run_pes(body, 5)


def test_what_a_pe_sends_and_what_does_not_fit(run_pes):
    def body():
        shmem.init()
        plan = Ulysses(tokens=4, heads=(6, 3, 3), head_dim=2, dtype="float16", blocks=2)
        with pytest.raises(
            shmem.ArgumentError, match="each must have a multiple of the team's PEs"
        ):
            Ulysses(tokens=4, heads=(6, 2), head_dim=2, dtype="float16")
        with pytest.raises(shmem.ArgumentError, match="1 arrays for parts, the plan has 3"):
            plan.to_heads(shmem.device_array((4, 12, 2), "float16"), None)
        shmem.finalize()
        return plan.sends()

    assert run_pes(body, 3)[0] == (2 * 4 * 4 * 2 * 2, 4)
