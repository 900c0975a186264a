"""The products with all-gather, reduce-scatter and all-reduce, against NumPy."""

from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
from gpushmem.kernels import AllGatherGemm, GemmAllReduce, GemmReduceScatter, gemm, gemm_beside

import gpushmem as shmem
from tests.pes import lateness, on_several_nodes, repeated, some_of, to_send, whole_warps

# One element's error: that of products of normal numbers with k up to 70, summed over 8 PEs.
TOLERANCE = {"bfloat16": 2, "float16": 0.25, "float32": 1e-4, "float64": 1e-12}
PLANS = {
    "all-gather": AllGatherGemm, "reduce-scatter": GemmReduceScatter, "all-reduce": GemmAllReduce,
}  # fmt: skip


def operands(name, m, n, k, dtype, pe, n_pes):
    """What PE `pe` multiplies: a and b."""
    rng = np.random.default_rng([1000 * pe, m, n, k])
    rows = n_pes * m if name == "reduce-scatter" else m
    return rng.normal(size=(rows, k)).astype(dtype), rng.normal(size=(k, n)).astype(dtype)


def expected(name, m, n, k, dtype, me, n_pes):
    every = [operands(name, m, n, k, dtype, pe, n_pes) for pe in range(n_pes)]
    every = [(a.astype("float64"), b.astype("float64")) for a, b in every]
    if name == "all-gather":
        return gemm.reference_gathered([a for a, _ in every], every[me][1])
    total = gemm.reference(every)
    return total[me * m : (me + 1) * m] if name == "reduce-scatter" else total


def run(name, m, n, k, dtype, team=shmem.TEAM_WORLD, calls=3, **options):
    """Make a plan, call it; the result is compared in place and returned."""
    me, n_pes = team.my_pe, team.n_pes
    if name == "all-gather":
        options.pop("direct", None)
    plan = PLANS[name](m=m, n=n, k=k, dtype=dtype, team=team, **options)
    if me >= 0:
        a, b = (to_send(x) for x in operands(name, m, n, k, dtype, me, n_pes))
        rows = n_pes * m if name == "all-gather" else m
        out = shmem.to_device(np.full((rows, n), -1000 - me, dtype))
        more = {}
        if name == "all-gather" and m % 2:
            more["gathered"] = shmem.to_device(np.full((rows, k), -1000 - me, dtype))
        for _ in range(calls):
            plan(a, b, out=out, **more)
        if more:
            shards = [operands(name, m, n, k, dtype, pe, n_pes)[0] for pe in range(n_pes)]
            assert np.array_equal(more["gathered"].numpy(), np.concatenate(shards))
        got, want = out.numpy(), expected(name, m, n, k, dtype, me, n_pes)
        np.testing.assert_allclose(
            got.astype("float64"), want, rtol=0, atol=TOLERANCE[dtype],
            err_msg=f"{name} {m} {n} {k} {dtype} {options}, PE {me} of {n_pes}",
        )  # fmt: skip
    plan.free()
    return got if me >= 0 else None


SIZES = [(3, 5, 7), (1, 1, 1), (0, 4, 3), (4, 0, 3), (4, 3, 0), (33, 17, 19), (64, 40, 70)]
TILES = [None, (4, 8), (2, 3), (9, 100), (1000, 1000)]
LAUNCHES = [(blocks, whole_warps(threads)) for blocks, threads in ((1, 1), (2, 4), (3, 32))]
# PEs, and whether with few dtypes.
PES = [(1, True), (3, True)]
PES += [pytest.param(n, False, marks=pytest.mark.sweep) for n in (1, 2, 3, 4, 5, 8)]


ALL = ("float64", "float32", "float16", "float32")  # in the sweep


def many_cases(few):
    """All sizes, each with some of the tiles, launches and dtypes, in turn."""
    shmem.init()
    for name in PLANS:
        dtypes, launches = (ALL[1:2], LAUNCHES[1:]) if few else (ALL, LAUNCHES)
        cases = some_of([(*size, tile) for size in SIZES for tile in TILES], 6)
        for case, (m, n, k, tile) in enumerate(cases[:: 2 if few else 1]):
            blocks, threads = launches[case % len(launches)]
            dtype = dtypes[case % len(dtypes)]
            run(
                name, m, n, k, dtype, tile=tile, direct=(None, False)[case // 2 % 2],
                blocks=blocks, threads=threads,
            )  # fmt: skip
        for case, (m, n, k) in enumerate(SIZES[:: 2 if few else 1]):
            blocks, threads = launches[case % len(launches)]
            dtype = ("bfloat16", *dtypes)[case % (1 + len(dtypes))]
            tile = (None, (2 * m, n), (1000, 1000))[case % 3] if min(m, n) else None
            run(name, m, n, k, dtype, method="library", tile=tile, blocks=blocks, threads=threads)
    bits = run("all-reduce", 45, 50, 31, "float32", tile=(7, 16), blocks=2).tobytes()
    shmem.finalize()
    return bits


@pytest.mark.timeout(400)  # 8 PEs take turns on few cores
@pytest.mark.parametrize(("n_pes", "few"), PES)
def test_products_are_numpys_and_sums_the_same_on_all_pes(run_pes, n_pes, few):
    assert len(set(run_pes(many_cases, n_pes, few, timeout=380))) == 1


def test_what_is_multiplied_may_be_part_of_larger_arrays(run_pes):
    def body():
        shmem.init()
        me, n_pes = shmem.my_pe(), shmem.n_pes()
        for name, kind in PLANS.items():
            a, b = operands(name, 6, 10, 8, "float64", me, n_pes)
            rows = 6 * n_pes if name == "all-gather" else 6
            wide_b = shmem.to_device(np.hstack([b, b]))
            wide_out = shmem.to_device(np.full((rows, 20), -1.0))
            for how in ({"tile": (4, 4)}, {"method": "library"}):
                wide_out.copy_from(-1)
                with kind(m=6, n=10, k=8, dtype="float64", **how) as plan:
                    plan(to_send(a), wide_b[:, 10:], out=wide_out[:, 5:15])
                    got = wide_out.numpy()
                want = expected(name, 6, 10, 8, "float64", me, n_pes)
                np.testing.assert_allclose(got[:, 5:15], want, rtol=0, atol=1e-12)
                assert (got[:, :5] == -1).all()
                assert (got[:, 15:] == -1).all()
        shmem.finalize()

    run_pes(body, 2)


DIRECT = on_several_nodes("stores do not reach all members")


@pytest.mark.parametrize("calls", [500, pytest.param(2000, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        pytest.param("all-gather", {"tile": (2, 3)}, marks=pytest.mark.sweep),
        ("all-gather", {"tile": (6, 5)}),  # two shards together, and one alone
        ("all-gather", {"method": "library"}),
        ("all-gather", {"method": "library", "tile": (9, 5)}),  # all three together
        pytest.param("reduce-scatter", {"method": "library"}, marks=pytest.mark.sweep),
        ("all-reduce", {"method": "library"}),
        pytest.param("reduce-scatter", {"tile": (2, 3), "direct": True}, marks=DIRECT),
        pytest.param("reduce-scatter", {"tile": (2, 3), "direct": False}, marks=pytest.mark.sweep),
        pytest.param(
            "all-reduce", {"tile": (2, 3), "direct": True}, marks=[pytest.mark.sweep, DIRECT]
        ),
        ("all-reduce", {"tile": (2, 3), "direct": False}),
    ],
)
def test_many_calls_without_a_barrier_while_pes_are_held_up(run_pes, name, options, calls):
    calls, m, n = repeated(calls), 3, 5

    @shmem.jit
    def fill(a, call):
        for i in range(a.shape[0]):
            a[i, 0] = 1000 * shmem.my_pe() + call + i

    @shmem.jit
    def check(out, call, gathered, first, wrong):
        n_pes, me = shmem.n_pes(), shmem.my_pe()
        for i in range(out.shape[0]):
            for j in range(out.shape[1]):
                if gathered:
                    want = 1000 * (i // 3) + call + i % 3 + j + me
                else:
                    want = n_pes * (call + first + i + j) + 1001 * n_pes * (n_pes - 1) // 2
                if out[i, j] != want:
                    wrong[0] += 1

    def body():
        shmem.init()
        me, n_pes, late = shmem.my_pe(), shmem.n_pes(), lateness(0.02, 0.001)
        gathered, scattered = name == "all-gather", name == "reduce-scatter"
        a = to_send(np.ones((n_pes * m if scattered else m, 2), "float32"))
        b = shmem.to_device(np.array([np.ones(n), np.arange(n) + me], "float32"))
        out = shmem.device_array((n_pes * m if gathered else m, n), "float32")
        wrong = shmem.to_device(np.zeros(1, "int64"))
        with PLANS[name](m=m, n=n, k=2, dtype="float32", blocks=2, **options) as plan:
            for call in range(calls):
                late()
                fill[1, 1](a, call)
                plan(a, b, out=out)
                check[1, 1](out, call, gathered, m * me if scattered else 0, wrong)
            result = int(wrong.numpy()[0])
        shmem.finalize()
        return result

    assert run_pes(body, 3, timeout=120) == [0, 0, 0]


def test_two_teams_at_once_and_pes_in_none(run_pes):
    def body():
        shmem.init()
        row, column = shmem.team_split_2d(shmem.TEAM_WORLD, 3)
        odd = shmem.team_split_strided(shmem.TEAM_WORLD, 1, 2, 2)
        for team in (row, column, odd):
            for name in PLANS:
                run(name, 7, 6, 5, "float32", team, calls=20, tile=(3, 4))
        shmem.finalize()

    run_pes(body, 5)


@pytest.mark.parametrize(("n_pes", "calls"), [(2, 4), pytest.param(3, 40, marks=pytest.mark.sweep)])
def test_sums_in_place_have_the_same_bits(run_pes, n_pes, calls):
    """In parts of some rows; into two arrays, in turns, whose sums are read later."""

    def body():
        shmem.init()
        me, n_pes = shmem.my_pe(), shmem.n_pes()
        sizes = {"m": 11, "n": 6, "k": 5, "dtype": "float32"}
        for rows in (11, 6, 2, 1):
            outs = [shmem.zeros((11, 6), "float32") for _ in range(2)]
            with (
                GemmAllReduce(**sizes, tile=(rows, 6), in_place=True, blocks=2) as plan,
                GemmAllReduce(**sizes, tile=(rows, 6), method="library") as other,
            ):
                assert plan.rows_together == rows
                kept = shmem.device_array((11, 6), "float32")
                a, b = (to_send(x) for x in operands("all-reduce", 11, 6, 5, "float32", me, n_pes))
                for call in range(calls):
                    a.copy_from(a.numpy() + call)
                    plan(a, b, out=outs[call % 2])
                    other(a, b, out=kept)
                    assert outs[call % 2].numpy().tobytes() == kept.numpy().tobytes()
                    added = call * (call + 1) / 2
                    parts = [
                        operands("all-reduce", 11, 6, 5, "float32", pe, n_pes)
                        for pe in range(n_pes)
                    ]
                    whole = sum((x + added) @ y for x, y in parts)
                    np.testing.assert_allclose(kept.numpy(), whole, rtol=1e-4, atol=1e-4)
                assert 11 * 6 * 4 <= other._nbytes() - plan._nbytes() <= 12 * 6 * 4
                with pytest.raises(shmem.SymmetryError, match="out must be a symmetric array"):
                    plan(a, b, out=kept)
        with pytest.raises(shmem.ArgumentError, match="with in_place it is 'library'"):
            GemmAllReduce(**sizes, method="kernel", in_place=True)
        shmem.finalize()

    run_pes(body, n_pes)


def test_what_a_pe_sends(run_pes):
    def body():
        shmem.init()
        sizes = {"m": 10, "n": 8, "k": 6, "dtype": "float32"}
        sent = [kind(**sizes, tile=(4, 4)).sends() for kind in PLANS.values()]
        beside = [kind(**sizes, method="library", blocks=2).sends() for kind in PLANS.values()]
        shmem.finalize()
        return sent, beside

    sent, beside = run_pes(body, 3)[0]
    # 10 rows in 3 tiles; 10 rows of 2 columns of tiles; chunks of 4 rows.
    assert sent == [(2 * 10 * 6 * 4, 6), (2 * 10 * 8 * 4, 12), (4 * 4 * 8 * 4, 8)]
    # A shard or chunk is sent whole, and so are its sums.
    assert beside == [(sent[0][0], 2), (sent[1][0], 2), (sent[2][0], 2 + 2)]


def test_shards_that_the_library_multiplies_together():
    h100 = 132
    # 56 tiles a shard: two fill 132 multiprocessors.
    assert gemm.shards_together(8, 512, 3584, 2, h100) == (2, 2, 4)
    assert gemm.shards_together(8, 2048, 3584, 2, h100) == (1, 1, 2, 4)
    assert gemm.shards_together(8, 16, 3584, 2, h100) == (8,)  # one row of tiles
    assert gemm.shards_together(7, 2048, 4096, 2, h100) == (1,) * 7
    assert gemm.shards_together(8, 512, 3584, 2, 0) == (1,) * 8


def test_parts_of_a_product_that_is_summed_up():
    h100, llama = 132, (8192, 3584, 2)  # columns, inner, bytes
    assert gemm.parts_to_sum(8, 16384, *llama, h100) == 8
    assert gemm.parts_to_sum(8, 4096, *llama, h100) == 4
    assert gemm.parts_to_sum(8, 64, *llama, h100) == 1  # not a MiB for each
    assert gemm.parts_to_sum(1, 16384, *llama, h100) == 1  # nothing is sent
    assert gemm.parts_to_sum(8, 16384, *llama, 0) == gemm_beside.ON_CPUS


@pytest.mark.parametrize("n_pes", [1, 2, 3, 4, 6, 8])
def test_shards_come_in_the_order_in_which_they_are_needed(n_pes):
    def beside(me, groups):
        one = gemm.GatherBeside.__new__(gemm.GatherBeside)
        one.plan, one.me = SimpleNamespace(groups=groups), me
        return one

    every = range(1, n_pes + 1)
    for groups in {gemm.divided(n_pes, g, d) for g in every if n_pes % g == 0 for d in (0, 1)}:
        if sum(groups) != n_pes:
            continue  # to double takes a power of two
        orders = [list(beside(me, groups).receivers()) for me in range(n_pes)]
        for me, order in enumerate(orders):
            assert sorted([me, *order]) == list(range(n_pes))
            wanted = list(beside(me, groups)._groups(1))
            assert [size for _, size in wanted] == list(groups)
            shards = [first + k for first, size in wanted for k in range(size)]
            assert sorted(shards) == list(range(n_pes))
            assert me in shards[: groups[0]]
            before = 0  # those that each shard of a group has been sent to before
            for first, size in wanted:
                for source in set(range(first, first + size)) - {me}:
                    assert before - 1 <= orders[source].index(me) < before + size
                before += size
        for k in range(n_pes - 1):  # nobody gets two at a time, but from its own group
            if k >= groups[0]:
                assert len({order[k] for order in orders}) == n_pes


def test_groups_of_shards_that_double(run_pes):
    def body():
        shmem.init()
        with mock.patch.object(gemm, "shards_together", lambda n, *_: gemm.divided(n, 1, True)):
            run("all-gather", 5, 6, 7, "float32", calls=20, method="library", blocks=2)
        shmem.finalize()

    run_pes(body, 4)


def test_products_of_the_library_in_a_graph(run_pes):
    def body():
        shmem.init()
        me, n_pes = shmem.my_pe(), shmem.n_pes()
        for name, kind in PLANS.items():
            a, b = (to_send(x) for x in operands(name, 6, 5, 4, "float32", me, n_pes))
            rows = 6 * n_pes if name == "all-gather" else 6
            outs = [shmem.to_device(np.full((rows, 5), -1, "float32")) for _ in range(2)]
            stream = shmem.stream()
            with kind(m=6, n=5, k=4, dtype="float32", method="library") as plan:
                plan(a, b, out=outs[0], stream=stream)  # code cannot be loaded in a capture
                outs[0].copy_from(-1)
                with shmem.capture(stream) as graph:
                    for out in outs:
                        plan(a, b, out=out, stream=stream)
                assert all((out.numpy() == -1).all() for out in outs)
                want = expected(name, 6, 5, 4, "float32", me, n_pes)
                for times in range(1, 4):
                    graph.launch(stream)
                    for out in outs:
                        np.testing.assert_allclose(out.numpy(), times * want, atol=1e-4)
                    a.copy_from(a.numpy() / times * (times + 1))
        shmem.finalize()

    run_pes(body, 3)


@pytest.mark.parametrize("graphs", [gemm.Gemm.graphs, 0])
def test_calls_that_repeat_are_graphs(run_pes, graphs):
    """On any stream, with the values of each time; and calls with other arrays between."""

    def body():
        shmem.init()
        me, n_pes = shmem.my_pe(), shmem.n_pes()
        streams = shmem.stream(), shmem.stream()
        for name, kind in PLANS.items():
            a, b = (to_send(x) for x in operands(name, 6, 5, 4, "float32", me, n_pes))
            first, want = a.numpy(), expected(name, 6, 5, 4, "float32", me, n_pes)
            outs = [shmem.to_device(np.zeros(want.shape, "float32")) for _ in range(2)]
            with kind(m=6, n=5, k=4, dtype="float32", method="library") as plan:
                plan.graphs = graphs
                for call in range(12):
                    a.copy_from((1 + call) * first)
                    out = outs[call % 5 == 4]
                    plan(a, b, out=out, stream=streams[call % 3 == 0])
                    np.testing.assert_allclose(out.numpy(), (1 + call) * want, atol=1e-3)
                made = [repeat.graph is not None for repeat in plan._repeats.values()]
            assert made == ([True, False] if graphs else [])
        shmem.finalize()

    run_pes(body, 3)


def codes(pe, rows, columns, rows_have_scales):
    """8-bit floats, and their scales."""
    rng = np.random.default_rng([1000 * pe, rows, columns])
    made = rng.normal(size=(rows, columns)).astype("float8_e4m3fn")
    shape = (rows, 1) if rows_have_scales else (1,)
    return made, rng.uniform(0.5, 2, shape).astype("float32")


@pytest.mark.parametrize("n_pes", [1, 3, pytest.param(4, marks=pytest.mark.sweep)])
def test_8_bit_floats_are_gathered_as_such(run_pes, n_pes):
    def body(n_pes):
        shmem.init()
        me, (m, n, k) = shmem.my_pe(), (5, 32, 48)
        cases = [
            (False, None, "bfloat16"), (True, None, "bfloat16"),
            (True, (n_pes * m, 1), "float32"), (False, (n_pes * m, 1), "float16"),
        ]  # fmt: skip
        for by_row, tile, dtype in cases:
            shards = [codes(pe, m, k, by_row) for pe in range(n_pes)]
            w, of_w = codes(100 + me, n, k, by_row)
            a, b, out = to_send(shards[me][0]), shmem.to_device(w).T, poisoned(n_pes * m, n, dtype)
            of_a = to_send(shards[me if by_row else 0][1])
            of_b = shmem.to_device(of_w.T.copy())
            whole = poisoned(n_pes * m, k, "float8_e4m3fn") if tile or dtype == "bfloat16" else None
            sizes = {"m": m, "n": n, "k": k, "dtype": "float8_e4m3fn", "out_dtype": dtype}
            with AllGatherGemm(**sizes, row_scales=by_row, tile=tile) as plan:
                for _ in range(3):
                    plan(a, b, out=out, gathered=whole, scale_a=of_a, scale_b=of_b)
                others = n_pes - 1
                assert plan.sends() == (others * m * (k + 4 * by_row), others * (1 + by_row))
                got = out.numpy().astype("float32")
            every = np.concatenate([x for x, _ in shards])
            if whole is not None:
                assert (whole.numpy() == every).all()
            scales = np.concatenate([x for _, x in shards]) if by_row else shards[0][1]
            factor = scales * of_w.T
            left, right = every.astype("float32"), w.T.astype("float32")
            allowed = 2**-7 * factor * (abs(left) @ abs(right))
            assert (abs(got - factor * (left @ right)) <= allowed).all()
        shmem.finalize()

    run_pes(body, n_pes, n_pes)


def poisoned(rows, columns, dtype):
    return shmem.to_device(np.full((rows, columns), -100 - shmem.my_pe(), dtype))


def test_8_bit_floats_are_refused_without_what_they_need(run_pes):
    def body():
        shmem.init()
        sizes = {"m": 4, "n": 16, "k": 32, "dtype": "float8_e4m3fn", "out_dtype": "bfloat16"}
        for wrong, says in [
            ({"dtype": "float16"}, "dtype is float16; it can be float8_e4m3fn"),
            ({"out_dtype": None}, "dtype is float8_e4m3fn; it can be float16, bf"),
            (
                {"out_dtype": "float64"},
                "out_dtype float64; of 8-bit floats these are 'library', and",
            ),
            ({"method": "kernel"}, "method is 'kernel', out_dtype bfloat16; of 8-bit"),
            ({"k": 40}, "n is 16, k is 40; of 8-bit floats both are multiples of 16"),
            (
                {"dtype": "float32", "out_dtype": None, "row_scales": True},
                "row_scales are of 8-bit",
            ),
        ]:
            with pytest.raises(shmem.ArgumentError, match=says):
                AllGatherGemm(**{**sizes, **wrong})
        a, w = (shmem.device_array((rows, 32), "float8_e4m3fn") for rows in (4, 16))
        out, one = shmem.device_array((4, 16), "bfloat16"), shmem.full(1, 1, "float32")
        plan = AllGatherGemm(**sizes)
        plan(a, w.T, out=out, scale_a=one, scale_b=one)
        with pytest.raises(shmem.ArgumentError, match="scale_b is missing"):
            plan(a, w.T, out=out, scale_a=one)
        with pytest.raises(shmem.ArgumentError, match=r"scale_a has shape \(4, 1\) .* for \(1,\)"):
            plan(a, w.T, out=out, scale_a=shmem.full((4, 1), 1, "float32"), scale_b=one)
        with pytest.raises(
            shmem.ArgumentError, match=r"out has shape .* for \(4, 16\) of bfloat16"
        ):
            plan(a, w.T, out=shmem.device_array((4, 16), "float32"), scale_a=one, scale_b=one)
        plan = AllGatherGemm(m=4, n=16, k=32, dtype="float32")
        wide = [shmem.device_array(shape, "float32") for shape in ((4, 32), (32, 16), (4, 16))]
        with pytest.raises(shmem.ArgumentError, match="scale_a: float32 has no scales"):
            plan(*wide[:2], out=wide[2], scale_a=one)
        shmem.finalize()

    run_pes(body, 1)


def test_what_does_not_fit(run_pes):
    def body():
        shmem.init()
        sizes = {"m": 4, "n": 5, "k": 6, "dtype": "float32"}
        for kind in PLANS.values():
            with pytest.raises(shmem.ArgumentError, match="int32; it can be float16, bfloat16, fl"):
                kind(**{**sizes, "dtype": "int32"})
            with pytest.raises(shmem.ArgumentError, match="4, -5, 6; they cannot be negative"):
                kind(**{**sizes, "n": -5})
            with pytest.raises(shmem.ArgumentError, match="'blas'; it can be 'kernel', 'library'"):
                kind(**sizes, method="blas")
            with pytest.raises(shmem.ArgumentError, match=r"tile is \(0, 5\); it is ro"):
                kind(**sizes, tile=(0, 5))
            plan = kind(**sizes)
            good = [shmem.device_array(s, "float32") for s in ((4, 6), (6, 5), (4, 5))]
            plan(*good[:2], out=good[2])
            for at, what in enumerate(("a", "b", "out")):
                for wrong in (
                    shmem.device_array((7, 5), "float32"),
                    shmem.device_array(good[at].shape, "float64"),
                ):
                    given = [*good[:at], wrong, *good[at + 1 :]]
                    with pytest.raises(shmem.ArgumentError, match=f"{what} has shape .*plan is f"):
                        plan(*given[:2], out=given[2])
        shmem.finalize()

    run_pes(body, 1)
