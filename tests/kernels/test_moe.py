"""Mixture of experts: dispatch and combine around experts that are known, and the fused layer."""

from itertools import product

import numpy as np
import pytest
from gpushmem.kernels import ExpertParallel, MoE, expert_ffn, route
from gpushmem.kernels.moe import reference as layer
from gpushmem.kernels.moe_dispatch import reference
from gpushmem.kernels.moe_parts import COUNT, MASKS, sort_by_expert
from gpushmem.kernels.wire import GROUP, WIRES
from numba import cuda

import gpushmem as shmem
from tests import pes
from tests.pes import lateness, repeated, sendable, some_of, to_send, whole_warps

SIZES = "tokens", "hidden", "experts", "top_k"
LAUNCHES = [(blocks, whole_warps(threads)) for blocks, threads in ((1, 1), (2, 4), (3, 32))]
# PEs, and whether with few dtypes.
PES = [(1, True), (3, True)]
PES += [pytest.param(n, False, marks=pytest.mark.sweep) for n in (1, 2, 3, 4, 5, 8)]
# Of float16 a result is rounded after each product and sum, about 11 times here.
TOLERANCE = {"float16": 1e-2, "bfloat16": 8e-2, "float32": 1e-5, "float64": 1e-12}


ALL = ("float32", "float64", "float16", "bfloat16")  # in the sweep; of the quick ones each has some


def some_for(form, wire):
    """Dtypes of the quick tests: float16 once, and else what the other tests use."""
    return ("float16",) if form == "throughput" and wire else ("float32",)


def rounding(plan, dtype):
    """Code for GPUs rounds a product and sum once."""
    return TOLERANCE[dtype] if plan.wire and pes.BACKEND != "cpu" else 0


def through(x, wire):
    """Tokens as they arrive."""
    return x if wire is None else WIRES[wire].through(x).astype(x.dtype)


def named(sizes, dtype):
    """Sizes as plans take them."""
    return dict(zip(SIZES, sizes, strict=True), dtype=dtype)


def choices_of(rng, tokens, experts, top_k, way):
    """Which experts: at random with some none, or some twice; all the first; all the last; none."""
    chosen = rng.random((tokens, experts)).argsort(axis=1)[:, :top_k].astype("int32")
    if way == "first":
        chosen[:] = np.arange(top_k)
    elif way == "last":
        chosen[:] = experts - 1 - np.arange(top_k)
    elif way == "none":
        chosen[:] = -1
    elif way == "twice":
        chosen[: tokens // 2] = experts - 1
        chosen[tokens // 2 :, -1] = chosen[tokens // 2 :, 0]
    else:
        chosen[rng.random(chosen.shape) < 0.2] = -1
    return chosen


def inputs_of(n, call, tokens, hidden, experts, top_k, dtype, way):
    """All PEs' tokens, which name their PE, and choices and weights; PEs have 0 to `tokens`."""
    xs, choices, weights = [], [], []
    for pe in range(n):
        rng = np.random.default_rng([n, call, pe])
        t = [tokens, 0, min(1, tokens), tokens // 2][(pe + call) % 4]
        x = 100 * pe + np.arange(t)[:, None] + np.arange(hidden) % 8 / 8
        xs.append((x if dtype not in ("float16", "bfloat16") else x / 64).astype(dtype))
        choices.append(choices_of(rng, t, experts, top_k, way))
        weights.append(rng.integers(1, 9, (t, top_k)).astype("float32") / 8)
    return xs, choices, weights


def check_received(plan, received, xs, choices):
    """Each segment has its source's tokens for that expert, in their order; none is in another."""
    rows, starts, counts = (array.numpy() for array in received)
    seen = np.zeros(len(rows), int)
    for local in range(plan.local_experts):
        for source, (x, chosen) in enumerate(zip(xs, choices, strict=True)):
            tokens = np.nonzero((chosen == plan.first_expert + local).any(axis=1))[0]
            tokens = tokens[: plan.capacity]
            place = slice(starts[local, source], starts[local, source] + counts[local, source])
            seen[place] += 1
            np.testing.assert_array_equal(rows[place], x[tokens])
    assert seen.max(initial=0) <= 1
    if plan.form == "throughput":
        assert (seen[: counts.sum()] == 1).all()
        np.testing.assert_array_equal(np.diff(starts.reshape(-1)), counts.reshape(-1)[:-1])
    return rows, starts, counts


def around(plan, xs, choices, weights, expert, hooked=False):
    """Dispatch, apply `expert(e, rows)` to what has come, combine; returns this PE's result.

    If `hooked`, a launch sends, and one receives, on another stream.
    """
    me = plan.my_pe
    arrays = (to_send(a[me]) for a in (xs, choices, weights))
    x, chosen, weight = arrays
    out = shmem.to_device(np.full(xs[me].shape, np.nan, xs[me].dtype))
    received = plan.dispatch(x, chosen, return_hook=hooked)
    if hooked:
        received, hook = received
        hook(stream=shmem.stream())
    arrived = [through(x, plan.wire) for x in xs]
    rows, starts, counts = check_received(plan, received, arrived, choices)
    made = np.full(rows.shape, np.nan, rows.dtype)  # rows that nobody sent must not be used
    for (local, source), count in np.ndenumerate(counts):
        place = slice(starts[local, source], starts[local, source] + count)
        made[place] = expert(plan.first_expert + local, rows[place])
    hook = plan.combine(to_send(made), weight, out=out, return_hook=hooked)
    if hooked:
        hook()
    return out.numpy()


# tokens, hidden, experts, top_k, capacity, way
CASES = [
    (13, 37, 5, 3, None, "random"),
    (12, 4, 9, 4, 2, "random"),
    (9, 8, 3, 1, None, "last"),
    (7, 1, 2, 2, 3, "first"),
    (9, 3, 5, 4, 2, "twice"),
    (6, 300, 4, 2, None, "random"),  # scales for parts of a token
    (5, 6, 8, 2, None, "none"),
    (0, 5, 1, 1, None, "random"),
]


def every_form(few):
    shmem.init()
    n, me = shmem.n_pes(), shmem.my_pe()
    times = [np.float32(e + 1) for e in range(9)]
    wires = [*product(("low_latency", "throughput"), (None, *WIRES))]
    wires = wires[::5] if few else wires
    cases = product(enumerate(CASES), wires, enumerate(LAUNCHES[few:]))
    for (number, case), (form, wire), (k, (blocks, threads)) in (
        [*cases][::3] if few else some_of([*cases], 5)
    ):
        *sizes, capacity, way = case
        dtypes = some_for(form, wire) if few else ALL
        dtype = dtypes[(number + k) % len(dtypes)]
        options = {"capacity": capacity, "form": form, "wire": wire}
        with ExpertParallel(
            **named(sizes, dtype), **options, blocks=blocks, threads=threads
        ) as plan:
            for call in range(3):
                inputs = inputs_of(n, call, *sizes, dtype, way)
                got = around(
                    plan, *inputs, lambda e, rows: rows * times[e].astype(rows.dtype), call == 1
                )
                xs = [through(x, wire) for x in inputs[0]]
                expected, dropped = reference(
                    xs, *inputs[1:], lambda e, rows: rows * times[e].astype(rows.dtype), capacity
                )
                rtol, what = rounding(plan, dtype), str((sizes, options))
                np.testing.assert_allclose(got, expected[me], rtol, 0, err_msg=what)
                assert plan.dropped() == dropped[me]
    shmem.finalize()


def every_layer(few):
    dtypes = ALL[:1] if few else ALL
    shmem.init()
    n, me = shmem.n_pes(), shmem.my_pe()
    rng = np.random.default_rng(0)
    ways = [{"tile": tile, "enough": enough} for tile, enough in ((512, 256), (4, 1), (5, 5))]
    ways.append({"method": "library"})
    cases = product(enumerate(CASES), enumerate(LAUNCHES[few:]), ways)
    for (number, case), (k, (blocks, threads)), by in (
        [*cases][::5] if few else some_of([*cases], 5)
    ):
        *sizes, capacity, way = case
        hidden, experts = sizes[1:3]
        inner = 2 * hidden + 1
        dtype = dtypes[(number + k) % len(dtypes)]
        activation = ("silu", "relu")[(number + k) % 2]
        w1 = (rng.normal(size=(experts, hidden, inner)) / 64).astype(dtype)
        w2 = (rng.normal(size=(experts, inner, hidden)) / 64).astype(dtype)
        with MoE(
            **named(sizes, dtype), inner=inner, activation=activation,
            capacity=capacity, blocks=blocks, threads=threads, **by,
        ) as plan:  # fmt: skip
            mine = slice(plan.first_expert, plan.first_expert + plan.local_experts)
            matrices = [shmem.to_device(w[mine]) for w in (w1, w2)]
            for call in range(2):
                inputs = inputs_of(n, call, *sizes, dtype, way)
                arrays = [to_send(a[me]) for a in inputs]
                out = shmem.device_array(inputs[0][me].shape, dtype)
                plan(*arrays, *matrices, out=out)
                wide = [[a.astype("float64") for a in inputs[0]], *inputs[1:]]
                expected, dropped = layer(
                    *wide, w1.astype("float64"), w2.astype("float64"), activation, capacity
                )
                scale = np.abs(expected[me]).max(initial=1e-3)
                np.testing.assert_allclose(
                    out.numpy() / scale, expected[me] / scale, atol=TOLERANCE[dtype]
                )
                assert plan.dropped() == dropped[me]
    shmem.finalize()


@pytest.mark.parametrize(("n_pes", "few"), PES)
def test_dispatch_and_combine_are_the_references(run_pes, n_pes, few):
    run_pes(every_form, n_pes, few)


@pytest.mark.parametrize(("n_pes", "few"), PES)
def test_the_fused_layer_is_the_references(run_pes, n_pes, few):
    run_pes(every_layer, n_pes, few)


@pytest.mark.cpu_backend  # on GPUs CUDA captures
def test_the_library_multiplies_as_many_rows_as_an_expert_has_or_all_in_a_graph(run_pes):
    def body():
        shmem.init()
        me, n, multiplied, gemm = shmem.my_pe(), shmem.n_pes(), [], shmem.gemm_batched

        def noted(dst, a, b, *more, **options):
            multiplied.append(a.shape[1])
            gemm(dst, a, b, *more, **options)

        shmem.gemm_batched = noted
        sizes = {"tokens": 9, "hidden": 4, "experts": 4, "top_k": 1, "dtype": "float32"}
        plan = MoE(**sizes, inner=4, activation="relu", method="library")
        one = np.broadcast_to(np.eye(4, dtype="float32"), (2, 4, 4))
        w1, w2 = shmem.to_device(one), shmem.to_device(one * (1 + plan.first_expert))
        x, out = (sendable(shmem.device_array((9, 4), "float32")) for _ in range(2))
        chosen, weights = shmem.device_array((9, 1), "int32"), shmem.full((9, 1), 1, "float32")
        stream = shmem.stream()
        with shmem.capture(stream) as graph:
            plan(x, chosen, weights, w1, w2, out=out, stream=stream)
        assert multiplied == [n * 9] * 2
        for k in (1, 5, 9, 0):  # tokens of each PE for expert 0; the others are for 2 and 3
            multiplied.clear()
            wants = [np.where(np.arange(9) < k, 0, 2 + (np.arange(9) < pe)) for pe in range(n)]
            x.copy_from(1000 * me + k + np.arange(9)[:, None])
            chosen.copy_from(wants[me][:, None])
            wanted = x.numpy() * np.where(wants[me] < 2, 1, 3)[:, None]
            for launch in (
                lambda: plan(x, chosen, weights, w1, w2, out=out), lambda: graph.launch(stream)
            ):  # fmt: skip
                out.copy_from(-1)
                launch()
                np.testing.assert_array_equal(out.numpy(), wanted)
            most = np.bincount(np.concatenate(wants), minlength=4)[2 * me : 2 * me + 2].max()
            rows = min(n * 9, 1 << int(most - 1).bit_length()) if most else 0
            assert multiplied == [rows] * 2, (k, most)
        shmem.finalize()

    run_pes(body, 2)


@shmem.jit
def sort(experts, top_k, n_experts, capacity, heads, order, position, dropped):
    b = cuda.blockIdx.x
    sort_by_expert(experts, top_k, n_experts, capacity, heads[b], order[b], position[b], dropped)


def sorted_by_expert(chosen, n_experts, capacity):
    """What sorting is to write, but for what it leaves."""
    order, heads, position, lost = [], [], np.full(chosen.shape, -1), 0
    for e in range(n_experts):
        naming = np.flatnonzero((chosen == e).any(axis=1))
        kept = naming[:capacity]
        heads.append(len(order) << 32 | len(kept))
        for row, t in enumerate(kept, len(order)):
            position[t][chosen[t] == e] = row
        order += [*kept]
        lost += len(naming) - len(kept)
    return heads, order, position.reshape(-1), lost


def test_sorting_is_by_expert_and_token(run_pes):
    def body():
        shmem.init()
        rng = np.random.default_rng(0)
        few = MASKS // 4  # experts: their first 128 tokens are sorted, then the others
        sizes = (5, 70, 12), (few, 128, 9), (3, 0, 1), (few, 300, 1)
        for n_experts, tokens, capacity in some_of(sizes):
            chosen = rng.integers(-1, n_experts + 1, (tokens, 3)).astype("i4")
            chosen[: tokens // 2, 1:] = n_experts - 1
            heads, order, position, lost = sorted_by_expert(chosen, n_experts, capacity)
            for blocks, threads in ((1, 1), (2, 32), (1, 96)):
                got = [shmem.full((blocks, n_experts), -7, "i8")]
                got += [shmem.full((blocks, chosen.size), -7, "i4") for _ in range(2)]
                dropped = shmem.full(1, -7, "i8")
                given = shmem.to_device(chosen.reshape(-1))
                sort[blocks, threads](given, 3, n_experts, capacity, *got, dropped)
                for b in range(blocks):
                    np.testing.assert_array_equal(got[0].numpy()[b], heads)
                    np.testing.assert_array_equal(got[1].numpy()[b, : len(order)], order)
                    np.testing.assert_array_equal(got[2].numpy()[b], position)
                assert (got[1].numpy()[:, len(order) :] == -7).all()
                assert dropped.numpy()[0] == lost
        shmem.finalize()

    run_pes(body, 1)


def test_a_token_is_sent_once_to_an_expert_and_to_a_pe(run_pes):
    def body():
        shmem.init()
        me = shmem.my_pe()
        inputs = inputs_of(2, 0, 8, 4, 4, 3, "float32", "twice")
        expected, _ = reference(*inputs, lambda e, rows: rows * np.float32(e + 1))
        for form in ("low_latency", "throughput"):
            with ExpertParallel(**named((8, 4, 4, 3), "float32"), form=form) as plan:
                got = around(plan, *inputs, lambda e, rows: rows * np.float32(e + 1))
                np.testing.assert_allclose(got, expected[me], 1e-6)
                assert plan.dropped() == 0
        sent = plan._boxes[3].numpy()[0] & COUNT  # rows of the last form's message to each PE
        there = [(inputs[1][me] // plan.experts_per_pe == pe).any(axis=1).sum() for pe in (0, 1)]
        assert sent.tolist() == there
        shmem.finalize()

    run_pes(body, 2)


def test_forms_launches_and_repetitions_give_the_same_bits(run_pes):
    def body():
        shmem.init()
        me = shmem.my_pe()
        rng = np.random.default_rng(me)
        xs = [np.random.default_rng(pe).normal(size=(30, 17)).astype("f4") for pe in range(3)]
        choices = [choices_of(np.random.default_rng(pe), 30, 7, 3, "random") for pe in range(3)]
        weights = [rng.random((30, 3)).astype("f4")] * 3
        found = set()
        for form in ("low_latency", "throughput"):
            for blocks, threads in LAUNCHES:
                plan = ExpertParallel(
                    tokens=30,
                    hidden=17,
                    experts=7,
                    top_k=3,
                    dtype="f4",
                    form=form,
                    blocks=blocks,
                    threads=threads,
                )
                for _ in range(2):
                    got = around(plan, xs, choices, weights, lambda e, rows: rows * np.float32(e))
                    found.add(got.tobytes())
                plan.free()
        shmem.finalize()
        return len(found)

    assert run_pes(body, 3) == [1, 1, 1]


@pytest.mark.parametrize("hidden", [267, 384])  # rows that are not aligned, and that are
def test_eight_bits_are_off_by_half_a_step_and_nan_stays(run_pes, hidden):
    def body():
        shmem.init()
        x = np.random.default_rng(1).normal(size=(50, hidden)) * np.logspace(-6, 4, 50)[:, None]
        x = x.astype("f4")
        x[7], x[8, 1:], x[9], x[10, 5], x[11, 266] = 0, 0, 1e-35, np.nan, np.inf
        chosen = np.full((50, 1), 1 - shmem.my_pe(), "i4")
        sizes = {"tokens": 50, "hidden": hidden, "experts": 2, "top_k": 1, "dtype": "f4"}
        for wire, least, off in (("int8", 254, 0), ("float8_e4m3", 458752, 1 / 16)):
            plan = ExpertParallel(**sizes, wire=wire, threads=32)
            rows, starts, counts = plan.dispatch(*map(to_send, (x, chosen)))
            assert counts.numpy()[0, 1 - shmem.my_pe()] == 50
            got = rows.numpy()[starts.numpy()[0, 1 - shmem.my_pe()] :][:50]
            np.testing.assert_array_equal(got, through(x, wire))
            assert np.isnan(got[10, :GROUP]).all()
            assert np.isnan(got[11, 2 * GROUP :]).all()
            assert (got[7] == 0).all()
            fine = np.delete(np.arange(50), (9, 10, 11))
            for first in range(0, hidden, GROUP):
                part = x[fine, first : first + GROUP]
                step = np.abs(part).max(axis=1, keepdims=True) / least
                error = np.abs(got[fine, first : first + GROUP].astype("f8") - part)
                assert (error <= np.maximum(step, off * np.abs(part)) * (1 + 1e-5)).all()
                assert error.max() > 0
        shmem.finalize()

    run_pes(body, 2)


@shmem.jit
def fill(x, chosen, weights, n_experts, call):
    """Tokens that name PE and call; all values, and what comes of them, are exact."""
    for t in range(x.shape[0]):
        for i in range(x.shape[1]):
            x[t, i] = 100 * shmem.my_pe() + call % 50 + t + i
        for j in range(chosen.shape[1]):
            chosen[t, j] = (call + 2 * t + j + shmem.my_pe()) % (n_experts + 1) - 1
            weights[t, j] = 1 + (call + t + j) % 3


@shmem.jit
def multiply_rows(rows, starts, counts, first_expert):
    for local in range(counts.shape[0]):
        for source in range(counts.shape[1]):
            start = starts[local, source]
            for r in range(start, start + counts[local, source]):
                for i in range(rows.shape[1]):
                    rows[r, i] *= first_expert + local + 1


@shmem.jit
def check(x, chosen, weights, out, wrong):
    for t in range(x.shape[0]):
        times = 0.0
        for j in range(chosen.shape[1]):
            times += weights[t, j] * (chosen[t, j] + 1)
        for i in range(x.shape[1]):
            if out[t, i] != times * x[t, i]:
                wrong[0] += 1
            out[t, i] = -1


def many_calls(make, apply, calls):
    """Fill, call and check `calls` times without a barrier, each PE held up now and then."""
    shmem.init()
    me, late = shmem.my_pe(), lateness(0.02, 0.001)
    tokens, hidden, experts, top_k = 6, 5, 4, 2
    plan = make(tokens, hidden, experts, top_k)
    x, out = (sendable(shmem.device_array((tokens, hidden), "float32")) for _ in range(2))
    chosen, weights = (shmem.device_array((tokens, top_k), kind) for kind in ("int32", "float32"))
    wrong = shmem.to_device(np.zeros(1, "int64"))
    for call in range(calls):
        t = (call + me) % (tokens + 1)
        fill[1, 1](x[:t], chosen[:t], weights[:t], experts, call)
        apply(plan, x[:t], chosen[:t], weights[:t], out[:t], late)
        check[1, 1](x[:t], chosen[:t], weights[:t], out[:t], wrong)
    result = int(wrong.numpy()[0])
    shmem.finalize()
    return result


@pytest.mark.parametrize("calls", [500, pytest.param(2000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("form", ["low_latency", "throughput"])
def test_many_exchanges_without_a_barrier_while_pes_are_held_up(run_pes, form, calls):
    def apply(plan, x, chosen, weights, out, hold_up):
        (rows, starts, counts), receive = plan.dispatch(x, chosen, return_hook=True)
        hold_up()
        receive()
        multiply_rows[1, 1](rows, starts, counts, plan.first_expert)
        hold_up()
        receive = plan.combine(rows, weights, out=out, return_hook=True)
        hold_up()
        receive()

    def make(*sizes):
        return ExpertParallel(**named(sizes, "float32"), form=form)

    assert run_pes(many_calls, 3, make, apply, repeated(calls), timeout=120) == [0, 0, 0]


@pytest.mark.parametrize(("method", "calls"), [("kernel", 2000), ("library", 500)])
def test_many_layers_without_a_barrier_while_pes_are_held_up(run_pes, method, calls):
    def make(tokens, hidden, experts, top_k):
        plan = MoE(
            tokens=tokens,
            hidden=hidden,
            inner=hidden,
            experts=experts,
            top_k=top_k,
            dtype="float32",
            activation="relu",
            tile=4,
            enough=2,
            method=method,
        )
        one = np.eye(hidden, dtype="float32")
        first = plan.first_expert
        times = np.arange(first + 1, first + 1 + plan.local_experts, dtype="float32")
        plan.matrices = [
            shmem.to_device(times[:, None, None] ** power * one)
            for power in (np.float32(0), np.float32(1))
        ]
        return plan

    def apply(plan, x, chosen, weights, out, hold_up):
        hold_up()
        plan(x, chosen, weights, *plan.matrices, out=out)

    assert run_pes(many_calls, 3, make, apply, repeated(calls), timeout=120) == [0, 0, 0]


def test_two_teams_at_once(run_pes):
    def body():
        shmem.init()
        row, column = shmem.team_split_2d(
            shmem.TEAM_WORLD, 3
        )  # rows of 3 and 2, columns of 2, 2, 1
        odd = shmem.team_split_strided(shmem.TEAM_WORLD, 1, 2, 2)
        plans = [
            ExpertParallel(
                tokens=11, hidden=6, experts=5, top_k=2, dtype="float32", team=team, form=form
            )
            for team, form in ((row, "low_latency"), (column, "throughput"), (odd, "throughput"))
        ]
        for call in range(5):
            for plan in plans:
                if not plan.team:
                    with pytest.raises(shmem.TeamError):
                        plan.dispatch(
                            shmem.device_array((1, 6), "f4"), shmem.device_array((1, 2), "i4")
                        )
                    continue
                inputs = inputs_of(plan.n_pes, call, 11, 6, 5, 2, "float32", "random")
                got = around(plan, *inputs, lambda e, rows: rows * np.float32(e + 1))
                expected, _ = reference(*inputs, lambda e, rows: rows * np.float32(e + 1))
                np.testing.assert_array_equal(got, expected[plan.my_pe])
        shmem.finalize()

    run_pes(body, 5)


def test_the_experts_networks_as_a_launch_of_their_own(run_pes):
    def body(form, align, most):
        shmem.init()
        inputs = inputs_of(2, 0, 20, 6, 5, 2, "float32", "random")
        rng = np.random.default_rng(0)
        w1, w2 = (rng.normal(size=(5, *shape)).astype("f4") / 8 for shape in ((6, 9), (9, 6)))
        plan = ExpertParallel(
            tokens=20, hidden=6, experts=5, top_k=2, dtype="f4", form=form, align=align
        )
        mine = slice(plan.first_expert, plan.first_expert + plan.local_experts)
        x, chosen, weights = (to_send(a[plan.my_pe]) for a in inputs)
        out = shmem.device_array(x.shape, "f4")
        received = plan.dispatch(x, chosen)
        y, hidden = (
            sendable(shmem.device_array(s, "f4")) for s in (received.rows.shape, (2, most, 9))
        )
        matrices = [shmem.to_device(w[mine]) for w in (w1, w2)]
        expert_ffn(received, *matrices, out=y, hidden=hidden, threads=2)
        plan.combine(y, weights, out=out)
        first, rows = received.starts.numpy()[:, 0], received.counts.numpy().sum(axis=1)
        assert not (first % align).any()
        if form == "throughput":
            assert (first[1:] == -(-(first + rows)[:-1] // align) * align).all()
        expected, _ = layer(*inputs, w1, w2)
        np.testing.assert_allclose(out.numpy(), expected[plan.my_pe], rtol=1e-5, atol=1e-4)
        shmem.finalize()

    for form, align in (("low_latency", 1), ("throughput", 1), ("throughput", 8)):
        run_pes(body, 2, form, align, 3)


def test_routing(run_pes):
    def body():
        shmem.init()
        for dtype in ("float32", "float64", "float16"):
            logits = np.random.default_rng(0).normal(size=(33, 7)).astype(dtype)
            logits[3], logits[4, :5], logits[5] = 0, np.nan, -np.inf
            chosen, weights = shmem.device_array((33, 4), "i4"), shmem.device_array((33, 4), "f4")
            route(shmem.to_device(logits), experts=chosen, weights=weights)
            got, share = chosen.numpy(), weights.numpy()
            for t in set(range(33)) - {4, 5}:
                order = np.argsort(-logits[t], kind="stable")[:4]
                np.testing.assert_array_equal(got[t], order)
                power = np.exp(logits[t, order].astype("f8"))
                np.testing.assert_allclose(share[t], power / power.sum(), rtol=1e-5)
            assert sorted(got[4, :2]) == [5, 6]
            assert got[4, 2:].tolist() == [-1, -1]
            assert share[4, 2:].tolist() == [0, 0]
            assert got[3].tolist() == [0, 1, 2, 3]
        with pytest.raises(shmem.ArgumentError, match="do not fit"):
            route(shmem.to_device(logits[:, :3]), experts=chosen, weights=weights)
        with pytest.raises(shmem.ArgumentError, match="int32 and float32"):
            route(shmem.to_device(logits), experts=weights, weights=weights)
        shmem.finalize()

    run_pes(body, 1)


def test_errors_name_both_numbers_and_the_next_step(run_pes):
    def body():
        shmem.init()
        error = shmem.ArgumentError
        sizes = named((4, 8, 2, 2), "f4")
        plan, fused = ExpertParallel(**sizes), MoE(**sizes, inner=16)
        x, chosen, weights = (
            shmem.device_array(*a) for a in (((4, 8), "f4"), ((4, 2), "i4"), ((4, 2), "f4"))
        )
        with pytest.raises(error, match="x has 5 tokens, the plan is for 4 at most"):
            plan.dispatch(shmem.device_array((5, 8), "f4"), shmem.device_array((5, 2), "i4"))
        with pytest.raises(error, match=r"x has shape \(4, 9\)"):
            plan.dispatch(shmem.device_array((4, 9), "f4"), chosen)
        with pytest.raises(error, match=r"experts has .* float32, the plan is for .* int32"):
            plan.dispatch(x, weights)
        with pytest.raises(error, match="combine follows dispatch"):
            plan.combine(x, weights, out=x)
        plan.dispatch(x, chosen)
        with pytest.raises(error, match="combine follows dispatch"):
            plan.dispatch(x, chosen)
        with pytest.raises(error, match="y has shape"):
            plan.combine(shmem.device_array((1, 8), "f4"), weights, out=x)
        hook = plan.combine(plan.received.rows, weights, out=x, return_hook=True)
        with pytest.raises(error, match="only sent: call the hook"):
            plan.dispatch(x, chosen)
        hook()
        with pytest.raises(error, match="a hook is called once"):
            hook()
        with pytest.raises(error, match="w1 has shape"):
            fused(x, chosen, weights, x, x, out=x)
        for wrong, said in (
            ({"form": "fast"}, "no form 'fast'"), ({"wire": "fp8"}, "wire 'fp8'"),
            ({"capacity": -1}, "0 or more"), ({"align": 8}, "align is 8"),
        ):  # fmt: skip
            with pytest.raises(error, match=said):
                ExpertParallel(**sizes, **wrong)
        with pytest.raises(error, match="3000 experts, and room to sort by 1024"):
            ExpertParallel(**{**sizes, "experts": 3000})
        with pytest.raises(error, match="chooses 3 experts, there are 2"):
            ExpertParallel(**{**sizes, "top_k": 3})
        with pytest.raises(error, match="dtype is int32"):
            ExpertParallel(**{**sizes, "dtype": "i4"})
        with pytest.raises(error, match="no activation 'gelu'"):
            MoE(**sizes, inner=16, activation="gelu")
        with pytest.raises(error, match="method is 'fast'; it can be 'kernel', 'library'"):
            MoE(**sizes, inner=16, method="fast")
        with pytest.raises(error, match="tile of 4 rows"):
            MoE(**sizes, inner=16, tile=4, enough=5)
        assert plan.sends() == (0, 0)
        shmem.finalize()

    run_pes(body, 1)
