"""Sums of rows of a table that is cut among PEs, against NumPy."""

import numpy as np
import pytest
from gpushmem.kernels import EmbeddingBags
from gpushmem.kernels.embedding import reference

import gpushmem as shmem
from tests.pes import lateness, on_several_nodes, repeated, some_of, to_send, whole_warps

SIZES = {"rows": 41, "dim": 10, "bags": 9, "most": 5}
LAUNCHES = ((1, 64), (2, 32), (3, 32))
OFF = {"float32": 1e-6, "float64": 1e-14, "float16": 5e-3, "bfloat16": 4e-2}


def numbers_of(pe, call, sizes):
    """Of bags, -1 for none in between and at ends; one is empty, one has the same row twice."""
    rng = np.random.default_rng([pe, call])
    numbers = rng.integers(-1, sizes["rows"], (sizes["bags"], sizes["most"])).astype("int32")
    numbers[0] = -1
    numbers[-1, :2] = pe % sizes["rows"]
    return numbers


def check(plan, whole, call, sizes, out):
    me, off = plan.my_pe, OFF[plan.dtype.name]
    rows, columns = (slice(r.start, r.stop) for r in (plan.rows, plan.columns))
    numbers = numbers_of(me, call, sizes)
    table = shmem.to_device(np.ascontiguousarray(whole[rows, columns]))
    plan(table, to_send(numbers), out=out)
    want = reference(whole, numbers, plan.mean)
    np.testing.assert_allclose(out.numpy().astype(float), want, rtol=off, atol=3 * off)


def every_case(dtypes):
    shmem.init()
    n = shmem.n_pes()
    parts = [k for k in range(1, n + 1) if n % k == 0]
    cases = [(k, dtype, mean) for dtype in dtypes for k in parts for mean in (False, True)]
    for number, (k, dtype, mean) in enumerate(some_of(cases, 3)):
        blocks, threads = LAUNCHES[number % 3]
        launch = {"blocks": blocks, "threads": whole_warps(threads)}
        with EmbeddingBags(**SIZES, column_parts=k, dtype=dtype, mean=mean, **launch) as plan:
            whole = np.random.default_rng(number).normal(size=(41, 10)).astype(dtype)
            out = shmem.to_device(np.full((9, 10), 77, dtype))
            for call in range(3):
                check(plan, whole, call, SIZES, out)
    shmem.finalize()


@pytest.mark.parametrize(
    ("n_pes", "dtypes"),
    [
        (3, ("float32",)),
        *(pytest.param(n, tuple(OFF), marks=pytest.mark.sweep) for n in (1, 2, 4, 5, 8)),
    ],
)
def test_sums_are_numpys(run_pes, n_pes, dtypes):
    run_pes(every_case, n_pes, dtypes, timeout=120)


def by_lanes(dtypes):
    """Rows of one word to 40, that is of 1 to 32 lanes and once more; numbers for two turns."""
    shmem.init()
    n, sizes = shmem.n_pes(), {"rows": 41, "bags": 3, "most": 37}
    for number, words in enumerate(some_of((3, 40, 1, 8))):
        parts, dtype = (1, n)[number % 2], dtypes[number % len(dtypes)]
        dim = parts * words * 16 // np.dtype(dtype).itemsize
        sizes |= {"dim": dim}
        launch = {"blocks": 1 + number, "threads": 32 * (1 + number % 2)}
        with EmbeddingBags(
            **sizes, column_parts=parts, dtype=dtype, mean=number > 1, **launch
        ) as plan:
            plan._by_lanes = True  # as on GPUs
            whole = np.random.default_rng(number).normal(size=(41, dim)).astype(dtype)
            out = shmem.to_device(np.full((3, dim), 77, dtype))
            for call in range(repeated(2, if_checked=1)):
                check(plan, whole, call, sizes, out)
    shmem.finalize()


@on_several_nodes("sums are stored to others")
@pytest.mark.parametrize(
    ("n_pes", "dtypes"),
    [
        (3, ("float32", "bfloat16")),
        *(pytest.param(n, tuple(OFF), marks=pytest.mark.sweep) for n in (1, 2, 5, 8)),
    ],
)
def test_lanes_sum_up_as_on_gpus(run_pes, n_pes, dtypes):
    run_pes(by_lanes, n_pes, dtypes, timeout=120)


def many_calls(calls):
    shmem.init()
    late, sizes = lateness(0.03, 0.005), SIZES | {"bags": 3}
    whole = (1000 * np.arange(41)[:, None] + np.arange(10)).astype("float32")  # sums are exact
    out = shmem.device_array((3, 10), "float32")
    options = {"column_parts": 2, "dtype": "float32", "threads": whole_warps(32), "blocks": 2}
    with EmbeddingBags(**sizes, **options) as plan:
        for call in range(calls):
            late()
            check(plan, whole + call, call, sizes, out)
    shmem.finalize()


@pytest.mark.parametrize("calls", [150, pytest.param(600, marks=pytest.mark.slow)])
def test_many_calls_without_a_barrier(run_pes, calls):
    run_pes(many_calls, 4, repeated(calls, if_checked=5))


@pytest.mark.cpu_backend  # on GPUs CUDA captures
def test_in_a_graph_of_two_teams_and_counted(run_pes):
    def body():
        shmem.init()
        me, stream = shmem.my_pe(), shmem.stream()
        teams = [shmem.team_split_strided(shmem.TEAM_WORLD, k, 2, 2) for k in (0, 1)]
        launch = {"team": teams[me % 2], "threads": whole_warps(32)}
        plan = EmbeddingBags(**SIZES, dtype="float32", **launch)
        whole = np.random.default_rng(me % 2).normal(size=(41, 10)).astype("float32")
        table = shmem.to_device(whole[plan.rows.start : plan.rows.stop])
        numbers, out = shmem.device_array((9, 5), "int32"), shmem.device_array((9, 10), "float32")
        numbers.copy_from(-1)
        plan(table, numbers, out=out, stream=stream)
        with shmem.capture(stream) as graph:
            plan(table, numbers, out=out, stream=stream)
        for call in range(3):
            mine = numbers_of(me, call, SIZES)
            numbers.copy_from(mine)
            graph.launch(stream)
            np.testing.assert_allclose(out.numpy(), reference(whole, mine), atol=1e-5)
        assert plan.sends() == (9 * (4 * 5 + 4 * 10), 2)
        shmem.finalize()

    run_pes(body, 4)


def test_what_a_plan_is_not_for(run_pes):
    def body():
        shmem.init()
        for given, said in (
            ({"column_parts": 2}, "cannot be cut in 2 parts over 3 PEs"),
            ({"dtype": "int32"}, "dtype is int32"),
            ({"bags": 0}, "bags must be 1 to"),
        ):
            with pytest.raises(shmem.ArgumentError, match=said):
                EmbeddingBags(**SIZES | {"dtype": "float32"} | given)
        with EmbeddingBags(**SIZES, dtype="float32") as plan:
            shapes = (len(plan.rows), 10), (9, 5), (9, 10)
            kinds = "float32", "int32", "float32"
            for k, said in enumerate(("table", "numbers", "out")):
                arrays = [shmem.device_array(*pair) for pair in zip(shapes, kinds, strict=True)]
                arrays[k] = shmem.device_array(3, "float32")
                with pytest.raises(shmem.ArgumentError, match=f"{said} has shape"):
                    plan(*arrays[:2], out=arrays[2])
        two = shmem.team_split_strided(shmem.TEAM_WORLD, 0, 1, 2)  # PE 2 is not in it
        EmbeddingBags(**SIZES, dtype="float32", column_parts=2, team=two).free()
        shmem.finalize()

    run_pes(body, 3)
