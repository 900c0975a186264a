"""Sparse matrices times vectors over PEs, against NumPy."""

from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
from gpushmem.kernels import SpMV
from gpushmem.kernels.spmv import reference

import gpushmem as shmem
from tests.pes import lateness, repeated, some_of, to_send, whole_warps

LAUNCHES = ((1, 1), (2, 32), (3, 48))
OFF = {"float32": 1e-5, "float64": 1e-13}


def csr(rows, columns, size, dtype, seed):
    """A matrix of these entries, in the order of rows, of `size` rows; its values are random."""
    rows, columns = np.array(rows, "int64"), np.array(columns, "int64")
    data = np.random.default_rng(seed).normal(size=len(rows)).astype(dtype)
    order = np.argsort(rows, kind="stable")
    starts = np.append(0, np.cumsum(np.bincount(rows, minlength=size))).astype("int64")
    return SimpleNamespace(indptr=starts, indices=columns[order], data=data[order])


def some(rng, rows, total, each):
    """About `each` entries in each row, in no order, some twice."""
    return rng.integers(0, max(rows, 1), each * rows), rng.integers(0, total, each * rows)


def band(first, rows, total):
    """The neighbours of each row."""
    row, column = (x.ravel() for x in np.meshgrid(np.arange(rows), (-1, 0, 1), indexing="ij"))
    return row, (first + row + column) % total


def matrices(kind, sizes, dtype, seed=0):
    """Those of all PEs, which have so many rows each; `x` is divided likewise."""
    made, rng, total = [], np.random.default_rng(seed), sum(sizes)
    for pe, rows in enumerate(sizes):
        first = sum(sizes[:pe])
        if kind == "band":
            entries = band(first, rows, total)
        elif kind == "some":
            entries = some(rng, rows, total, 5)
        elif kind == "from the first":  # who alone sends
            entries = np.arange(rows), np.zeros(rows, int)
        else:
            entries = np.arange(rows), first + np.arange(rows)
        made.append(csr(*entries, rows, dtype, [seed, pe]))
    return made


KINDS = "band", "some", "from the first", "own"


def sizes_of(n):
    """Of PEs that are unlike, the last one without any row, if there are several."""
    return [90 - 30 * (pe % 3) for pe in range(n - 1)] + [0 if n > 2 else 40]


def every_kind(kinds, dtypes):
    shmem.init()
    me, n = shmem.my_pe(), shmem.n_pes()
    cases, launches = [*product(kinds, dtypes)], LAUNCHES[len(dtypes) == 1 :]
    for number, (kind, dtype) in enumerate(some_of(cases, 3)):
        (blocks, threads), sizes = launches[number % len(launches)], sizes_of(n)
        every = matrices(kind, sizes, dtype, number)
        with SpMV(every[me], blocks=blocks, threads=whole_warps(threads)) as plan:
            out = shmem.to_device(np.full(sizes[me], 77, dtype))
            first = sum(sizes[:me])
            for call in range(3):
                x = 1000 + np.arange(sum(sizes)) + 0.5 * call
                plan(to_send(x[first : first + sizes[me]].astype(dtype)), out=out)
                want = reference(every, x)[first : first + sizes[me]]
                np.testing.assert_allclose(out.numpy(), want, rtol=0, atol=1e4 * OFF[dtype])
    shmem.finalize()


@pytest.mark.parametrize(
    ("n_pes", "kinds", "dtypes"),
    [
        (1, KINDS[:2], ("float64",)),
        (3, KINDS, ("float64",)),
        *(pytest.param(n, KINDS, tuple(OFF), marks=pytest.mark.sweep) for n in (1, 2, 3, 5, 8)),
    ],
)
def test_products_are_numpys(run_pes, n_pes, kinds, dtypes):
    run_pes(every_kind, n_pes, kinds, dtypes, timeout=120)


def power_iteration(calls):
    """Each call multiplies what the one before gave; PEs are late now and then."""
    shmem.init()
    me, n, late = shmem.my_pe(), shmem.n_pes(), lateness(0.03, 0.005)
    sizes = [40] * n
    every = matrices("some", sizes, "float64")
    for matrix in every:  # no larger, and no smaller
        matrix.data[:] = np.sign(matrix.data) / np.sqrt(5)
    x = np.random.default_rng(1).normal(size=sum(sizes))
    two = [to_send(part[40 * me : 40 * me + 40]) for part in (x, x)]
    with SpMV(every[me], blocks=2, threads=whole_warps(32)) as plan:
        for call in range(calls):
            plan(two[call % 2], out=two[1 - call % 2])
            x = reference(every, x)
            late()
        mine = two[calls % 2].numpy()
        np.testing.assert_allclose(mine, x[40 * me : 40 * me + 40], rtol=1e-6, atol=1e-9)
    shmem.finalize()


@pytest.mark.parametrize("calls", [200, pytest.param(1500, marks=pytest.mark.slow)])
def test_many_calls_without_a_barrier(run_pes, calls):
    run_pes(power_iteration, 5, repeated(calls, if_checked=5))


def test_rectangles_of_two_teams_and_counted(run_pes):
    """PE p of a team has p + 1 rows, and two elements of x."""

    def body():
        shmem.init()
        me = shmem.my_pe()
        teams = [shmem.team_split_strided(shmem.TEAM_WORLD, k, 2, 2) for k in (0, 1)]
        dense = [1.0 + np.arange(12.0).reshape(3, 4) + 100 * k for k in range(2)][me % 2]
        rows = dense[:1] if me < 2 else dense[1:]
        where = np.nonzero(rows)
        matrix = csr(*where, len(rows), "float64", 0)
        matrix.data[:] = rows[where]
        plan, x = (
            SpMV(matrix, size=2, team=teams[me % 2], blocks=1),
            np.array([1.0, 10.0, 100.0, 1000.0]),
        )
        out = shmem.device_array(len(rows), "float64")
        plan(to_send(x[:2] if me < 2 else x[2:]), out=out)
        np.testing.assert_allclose(out.numpy(), rows @ x)
        assert plan.sends() == (2 * 8, 1)
        every = [*matrices("band", [5, 5, 5], "float64"), csr([], [], 0, "float64", 0)]
        team = shmem.team_split_strided(shmem.TEAM_WORLD, 0, 1, 3)
        with SpMV(every[me], team=team) as plan:  # PE 3 is not in it
            if me < 3:
                x, out = np.arange(15.0), shmem.device_array(5, "float64")
                plan(to_send(x[5 * me : 5 * me + 5]), out=out)
                want = reference(every, x)[5 * me : 5 * me + 5]
                np.testing.assert_allclose(out.numpy(), want, atol=1e-12)
        shmem.finalize()

    run_pes(body, 4)


@pytest.mark.cpu_backend  # on GPUs CUDA captures
def test_in_a_graph_and_what_a_plan_is_not_for(run_pes):
    def body():
        shmem.init()
        me, stream, sizes = shmem.my_pe(), shmem.stream(), [6, 6]
        every = matrices("band", sizes, "float32")
        plan, out = SpMV(every[me]), shmem.device_array(6, "float32")
        x = to_send(np.zeros(6, "float32"))
        plan(x, out=out, stream=stream)
        with shmem.capture(stream) as graph:
            plan(x, out=out, stream=stream)
        for call in range(3):
            whole = np.arange(12.0) + call
            x.copy_from(whole[6 * me : 6 * me + 6])
            graph.launch(stream)
            want = reference(every, whole)[6 * me : 6 * me + 6]
            np.testing.assert_allclose(out.numpy(), want, atol=1e-4)
        with pytest.raises(shmem.ArgumentError, match="x has shape"):
            plan(shmem.device_array(5, "float32"), out=out)
        matrix = csr([0, 1], [0, 12], 6, "float32", 0)
        with pytest.raises(shmem.ArgumentError, match="indices are 0 to 12, of 12 in all"):
            SpMV(matrix)
        matrix.data = matrix.data.astype("float16")
        with pytest.raises(shmem.ArgumentError, match="float32 or float64"):
            SpMV(matrix)
        shmem.finalize()

    run_pes(body, 2)
