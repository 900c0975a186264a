"""All-reduce, by every algorithm, and the fused norm, against NumPy."""

from types import SimpleNamespace

import numpy as np
import pytest
from gpushmem.kernels import AllReduce, AllReduceRMSNorm
from gpushmem.kernels.all_reduce import FLAGGED, SUMMING, suggested
from gpushmem.kernels.all_reduce_norm import BY_FOUR, reference
from numba import cuda

import gpushmem as shmem
from tests.pes import NODES, lateness, on_several_nodes, repeated, sendable, to_send, whole_warps

SIZES = (0, 1, 7, 33, 1000)
ALGORITHMS = [name for name in SUMMING if NODES == 1 or name not in ("multicast", *FLAGGED)]
SHAPES = tuple((blocks, whole_warps(threads)) for blocks, threads in ((1, 1), (2, 4), (3, 32)))
PES = (1, 3, *(pytest.param(n, marks=pytest.mark.sweep) for n in (2, 4, 5, 8)))
CALLS = 500, pytest.param(2000, marks=pytest.mark.slow)
UNITS = {"float16": 2**-11, "float32": 2**-24, "float64": 2**-53}
TOLERANCES = {"bfloat16": 0.16, "float16": 2e-2, "float32": 2e-5, "float64": 1e-13}


@pytest.mark.parametrize(
    ("n_pes", "dtype"),
    [
        (1, "float32"), (3, "float32"),  # which other tests have compiled, too
        *(pytest.param(n, "int64", marks=pytest.mark.sweep) for n in (1, 2, 3, 4, 5, 8)),
    ],
)  # fmt: skip
def test_sums_are_numpys(run_pes, n_pes, dtype):
    """Whole numbers: exact in every order, so wrong, missing and doubled addends all show."""

    shapes = SHAPES[dtype == "float32" :]

    def body():
        shmem.init()
        me, n, done = shmem.my_pe(), shmem.n_pes(), 0
        for algorithm in ALGORITHMS:
            for size in SIZES:
                for blocks, threads in shapes[: 1 if size == 1000 else 3]:
                    plan = AllReduce(
                        size=size,
                        dtype=dtype,
                        algorithm=algorithm,
                        blocks=blocks,
                        threads=whole_warps(threads, algorithm),
                    )
                    x = sendable(shmem.device_array(size, dtype))
                    for call in range(3):
                        x.copy_from(np.arange(size) % 97 + 1000 * me + call)
                        plan(x)
                        wanted = n * (np.arange(size) % 97 + call) + 500 * n * (n - 1)
                        np.testing.assert_array_equal(x.numpy(), wanted, f"{algorithm} {size}")
                        done += 1
                    plan.free()
        shmem.finalize()
        return done

    assert run_pes(body, n_pes) == [len(ALGORITHMS) * (4 * len(shapes) + 1) * 3] * n_pes


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_pe_ends_with_the_same_bits(run_pes, algorithm):
    """Each addition of floats rounds to half a unit in the last place of a partial sum."""

    def body():
        shmem.init()
        n, found = shmem.n_pes(), []
        for dtype in UNITS if algorithm == "one_shot" else ("float32",):
            unit = UNITS[dtype]
            parts = [np.random.default_rng(pe).normal(size=1031).astype(dtype) for pe in range(n)]
            x = to_send(parts[shmem.my_pe()])
            AllReduce(size=1031, dtype=dtype, algorithm=algorithm, blocks=2)(x)
            wide = np.array(parts, "float64")
            error = np.abs(x.numpy() - wide.sum(axis=0))
            assert (error <= n * unit * np.abs(wide).sum(axis=0)).all()
            found.append(x.numpy().tobytes())
        shmem.finalize()
        return found

    results = run_pes(body, 5)
    assert all(found == results[0] for found in results)


@pytest.mark.parametrize("n_pes", PES[1:])
def test_the_norm_is_numpys(run_pes, n_pes):
    """Tolerances are some units in the last place of each dtype; bits are the same everywhere."""

    def body():
        shmem.init()
        me, n, bits = shmem.my_pe(), shmem.n_pes(), []
        rng = np.random.default_rng(5)
        for dtype, tolerance in TOLERANCES.items():
            for algorithm in ALGORITHMS if dtype == "float32" else ("two_shot",):
                for k, shape in enumerate([(1, 8), (0, 16), (5, 33), (7, 1), (40, 129)]):
                    blocks, threads = SHAPES[k % 3]
                    threads = whole_warps(threads, algorithm)
                    options = {"algorithm": algorithm, "blocks": blocks, "threads": threads}
                    plan = AllReduceRMSNorm(
                        tokens=shape[0], hidden=shape[1], dtype=dtype, **options
                    )
                    if plan._real == "float32" and blocks == 2:
                        plan._real = BY_FOUR  # as on GPUs
                    for _ in range(2):
                        parts = [rng.normal(size=shape).astype(dtype) for _ in range(n)]
                        before = rng.normal(size=shape).astype(dtype)
                        gain = rng.normal(size=shape[1:]).astype(dtype)
                        x, residual, weight = map(to_send, (parts[me], before, gain))
                        out = shmem.device_array(shape, dtype)
                        plan(x, residual, weight, out=out)
                        wanted = reference(parts, before, gain)
                        for got, want in zip((residual, out), wanted, strict=True):
                            want = want.astype("float64")  # noqa: PLW2901
                            np.testing.assert_allclose(
                                got.numpy(), want, rtol=tolerance, atol=tolerance
                            )
                            bits.append(got.numpy().tobytes())
                    plan.free()
        shmem.finalize()
        return bits

    results = run_pes(body, n_pes, timeout=150)
    assert all(bits == results[0] for bits in results)
    assert len(results[0]) == (len(ALGORITHMS) + len(TOLERANCES) - 1) * 5 * 2 * 2


@pytest.mark.parametrize(("threads", "hidden"), [(32, 7), (96, 20_001), (512, 20_001)])
def test_squares_are_summed_as_exactly_as_is_said(alone, threads, hidden):
    """Rounding in one direction: each addend is a little more than what is kept of it."""
    x, residual = np.zeros((2, hidden), "f4"), np.ones((2, hidden), "f4")
    residual[0] += np.float32(2**-12)
    residual[:, 0] *= 100
    wide = residual.astype("f8")
    given = [to_send(array) for array in (x, residual, np.ones(hidden, "f4"))]
    out = shmem.device_array((2, hidden), "float32")
    sizes = {"tokens": 2, "hidden": hidden, "dtype": "float32"}
    with AllReduceRMSNorm(**sizes, threads=threads, blocks=1, eps=0.0) as plan:
        plan(*given, out=out)
        found = (wide[:, -1] / out.numpy()[:, -1]) ** 2 * hidden
    exact = (wide**2).sum(axis=1)
    times = hidden / (4 * threads) + threads / 32 + 36 + 6  # and what follows from the sum
    assert (np.abs(found - exact) <= exact * times * 2**-24).all()


@shmem.jit
def fill(x, call):
    for i in range(x.size):
        x[i] = 1000 * shmem.my_pe() + call + i


@shmem.jit
def check(x, call, wrong):
    n = shmem.n_pes()
    for i in range(x.size):
        if x[i] != n * (call + i) + 500 * n * (n - 1):
            wrong[0] += 1


@pytest.mark.parametrize("calls", CALLS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_many_calls_without_a_barrier_while_pes_are_held_up(run_pes, algorithm, calls):
    calls = repeated(calls)

    def body():
        shmem.init()
        options = {"algorithm": algorithm, "threads": whole_warps(2, algorithm)}
        plan = AllReduce(size=23, dtype="float32", blocks=2, **options)
        x, late = sendable(shmem.device_array(23, "float32")), lateness(0.02, 0.001)
        wrong = shmem.to_device(np.zeros(1, "int64"))
        for call in range(calls):
            late()
            fill[1, 1](x, call)
            plan(x)
            check[1, 1](x, call, wrong)
        result = int(wrong.numpy()[0])
        shmem.finalize()
        return result

    assert run_pes(body, 3, timeout=120) == [0, 0, 0]


@pytest.mark.parametrize("calls", CALLS)
def test_many_norms_without_a_barrier_while_pes_are_held_up(run_pes, calls):
    """Each call adds a number of its own to the residual: small whole ones, exact in floats."""
    calls = repeated(calls)

    @shmem.jit
    def fill(x, call):
        for i in range(x.size):
            x[i] = shmem.my_pe() + 1 + call % 7

    @shmem.jit
    def compare(residual, wanted, wrong):
        for i in range(residual.size):
            if residual[i] != wanted:
                wrong[0] += 1

    def body():
        shmem.init()
        n, late = shmem.n_pes(), lateness(0.02, 0.001)
        options = {"algorithm": "two_shot", "blocks": 2, "threads": whole_warps(3)}
        plan = AllReduceRMSNorm(tokens=5, hidden=7, dtype="float32", **options)
        x, residual, out = (to_send(np.zeros((5, 7), "float32")) for _ in range(3))
        weight = shmem.to_device(np.ones(7, "float32"))
        wrong = shmem.to_device(np.zeros(1, "int64"))
        flat_x, flat_residual, wanted = x.reshape(-1), residual.reshape(-1), 0
        for call in range(calls):
            late()
            fill[1, 1](flat_x, call)
            plan(x, residual, weight, out=out)
            wanted += n * (n + 1) // 2 + n * (call % 7)
            compare[1, 1](flat_residual, float(wanted), wrong)
        assert np.allclose(out.numpy(), 1)
        result = int(wrong.numpy()[0])
        shmem.finalize()
        return result

    assert run_pes(body, 3, timeout=120) == [0, 0, 0]


def test_plans_of_teams_of_different_sizes_at_the_same_time(run_pes):
    """5 PEs in rows of 2: the teams have 2, 2 and 1 PEs, and as many sizes of workspace."""

    def body():
        shmem.init()
        me = shmem.my_pe()
        row, column = shmem.team_split_2d(shmem.TEAM_WORLD, 2)
        results = []
        for team in (row, column):
            with AllReduce(size=100, dtype="int64", team=team, algorithm="two_shot") as plan:
                x = to_send(np.arange(100) + 1000 * me)
                for _ in range(3):
                    plan(x)
                results.append(x.numpy().tolist())
        shmem.finalize()
        return results

    rows, columns = [[0, 1], [2, 3], [4]], [[0, 2, 4], [1, 3]]
    for me, results in enumerate(run_pes(body, 5)):
        for teams, got in zip((rows, columns), results, strict=True):
            members = next(team for team in teams if me in team)
            n = len(members)
            wanted = n * np.arange(100) + 1000 * sum(members)
            assert got == (wanted * n**2).tolist()


def test_a_pe_that_is_in_no_team_makes_the_plan_all_the_same(run_pes):
    def body():
        shmem.init()
        team = shmem.team_split_strided(shmem.TEAM_WORLD, 0, 2, 2)  # PEs 0 and 2
        x, plan = to_send(np.ones(8, "float32")), AllReduce(size=8, dtype="float32", team=team)
        if team:
            plan(x)
        else:
            with pytest.raises(shmem.TeamError, match="AllReduce: this PE is not in the plan's"):
                plan(x)
        plan.free()
        result = x.numpy()[0]
        shmem.finalize()
        return result

    assert run_pes(body, 3) == [2, 1, 2]


def test_calls_on_several_streams_keep_their_order(run_pes):
    def body():
        shmem.init()
        plan, streams = AllReduce(size=64, dtype="float32"), [0, shmem.stream(), shmem.stream()]
        x = to_send(np.ones(64, "float32"))
        for call in range(30):
            plan(x, stream=streams[call % 3])
        result = x.numpy().tolist()
        shmem.finalize()
        return result

    assert run_pes(body, 2) == [[2**30] * 64] * 2


def test_arrays_that_are_not_the_plans(run_pes):
    def body():
        shmem.init()
        plan = AllReduce(size=8, dtype="float32")
        for wrong in (shmem.device_array(9, "float32"), shmem.device_array(8, "float64")):
            with pytest.raises(shmem.ArgumentError, match=r"the plan is for \(8,\) of float32"):
                plan(wrong)
        with pytest.raises(shmem.ArgumentError, match="no algorithm 'tree'; there are one_shot"):
            AllReduce(size=8, dtype="float32", algorithm="tree")
        norm, good = (
            AllReduceRMSNorm(tokens=2, hidden=3, dtype="float32"),
            shmem.device_array((2, 3), "float32"),
        )
        with pytest.raises(shmem.ArgumentError, match=r"weight has shape \(2,\)"):
            norm(good, good, shmem.device_array(2, "float32"), out=good)
        plan.free()
        with pytest.raises(shmem.ShmemError, match="free"):
            plan(shmem.device_array(8, "float32"))
        shmem.finalize()

    run_pes(body, 1)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_what_is_sent_is_what_the_formula_says(run_pes, algorithm):
    """Boxes are painted; what has another colour afterwards has been sent, by somebody or by me."""

    def body():
        shmem.init()
        plan = AllReduce(size=3 * 32 * 15, dtype="float32", algorithm=algorithm, blocks=1)
        x = np.random.default_rng(shmem.my_pe()).normal(size=plan.size)
        x = to_send(x.astype("float32"))
        boxes = [box.view("float32") for box in plan.inboxes]
        for box in boxes:
            box.copy_from(-1e30)
        shmem.barrier_all()
        plan(x)
        shmem.barrier_all()
        arrived = sum(np.count_nonzero(box.numpy() != np.float32(-1e30)) for box in boxes) * 4
        shmem.finalize()
        return arrived, plan.sends()[0]

    arrived, says = zip(*run_pes(body, 3), strict=True)
    # Besides, what a PE has copied to its own boxes; sums by multicast arrive 3 times. The
    # last step of a ring has a box that was used before.
    part = 32 * 15 * 4
    copies = {"one_shot": 3 * part, "two_shot": part, "multicast": 2 * part + 3 * part,
              "ll": 6 * part, "ll128": part * 16 // 5, "ring": -part,
              "ll128_two_shot": part * 16 // 15}  # fmt: skip
    assert [a - copies.get(algorithm, 0) for a in arrived] == list(says)


@pytest.mark.parametrize("n_pes", [1, 3, pytest.param(8, marks=pytest.mark.sweep)])
@on_several_nodes("loads do not reach all members")
def test_symmetric_arrays_are_summed_in_place(run_pes, n_pes):
    """Calls follow each other without a barrier, while PEs are held up."""
    calls = repeated(60)

    @shmem.jit
    def fill(x, call):
        for i in range(cuda.threadIdx.x, x.size, cuda.blockDim.x):
            x[i] = i % 97 + 1000 * shmem.my_pe() + call

    @shmem.jit
    def check(x, call, wrong):
        n = shmem.n_pes()
        for i in range(cuda.threadIdx.x, x.size, cuda.blockDim.x):
            if x[i] != n * (i % 97 + call) + 500 * n * (n - 1):
                cuda.atomic.add(wrong, 0, 1)

    def body():
        shmem.init()
        wrong, late = shmem.to_device(np.zeros(1, "int64")), lateness(0.1, 0.001)
        for size, (blocks, threads) in zip((0, 1, 33, 1000, 120_001), SHAPES * 2, strict=False):
            whole = shmem.full(size + 8, -1, "float32")
            x = whole[4 : 4 + size]
            plan = AllReduce(
                size=size, dtype="float32", algorithm="in_place", blocks=blocks, threads=threads
            )
            assert plan.sends()[1] == 2 * (shmem.n_pes() - 1) * blocks
            for call in range(calls if size <= 1000 else 3):  # the longest: in several pieces
                late()
                fill[1, threads](x, call)
                plan(x)
                check[1, threads](x, call, wrong)
            assert (np.delete(whole.numpy(), slice(4, 4 + size)) == -1).all()
            plan.free()
        plan = AllReduce(size=8, dtype="float32", algorithm="in_place")
        with pytest.raises(shmem.SymmetryError, match="'in_place' x must be a symmetric array"):
            plan(shmem.device_array(8, "float32"))
        assert wrong.numpy()[0] == 0
        shmem.finalize()

    run_pes(body, n_pes)


def test_small_arrays_go_by_ll_where_that_pays_and_all_can_be_reached():
    def said(nbytes, n_pes=8, reachable=True, ll_bytes=448 << 10, ll128_bytes=0, threads=32):
        tuning = SimpleNamespace(
            ll_bytes=ll_bytes, ll128_bytes=ll128_bytes, one_shot_bytes=5 << 20
        )  # fmt: skip
        plan = SimpleNamespace(n_pes=n_pes, reachable=reachable, tuning=tuning, threads=threads)
        return suggested(plan, nbytes)

    assert [said(64 << 10), said(65 << 10), said(6 << 10, 72)] == ["ll", "one_shot", "ll"]
    assert [said(448 << 10, 2), said(449 << 10, 2), said(8, 1)] == ["ll", "one_shot", "one_shot"]
    assert [said(8, reachable=False), said(8, ll_bytes=0)] == ["one_shot", "one_shot"]
    assert [said(731 << 10), said(732 << 10), said(6 << 20, 2)] == [
        "one_shot", "two_shot", "one_shot"
    ]  # fmt: skip
    lines = {"ll128_bytes": 7 << 18}
    assert [said(64 << 10, **lines), said(65 << 10, **lines), said(256 << 10, **lines)] == [
        "ll", "ll128", "ll128"
    ]  # fmt: skip
    assert [said(257 << 10, **lines), said(2 << 20, **lines), said(2049 << 10, **lines)] == [
        "ll128_two_shot", "ll128_two_shot", "two_shot"
    ]  # fmt: skip
    assert [said(7 << 18, 2, **lines), said(8 << 18, 2, **lines), said(8, 1, **lines)] == [
        "ll128", "one_shot", "one_shot"
    ]  # fmt: skip
    assert said(65 << 10, **lines, threads=31) == said(65 << 10, 8, False, **lines) == "one_shot"
