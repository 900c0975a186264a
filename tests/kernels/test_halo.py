"""Halos of an array that is cut along an axis, and their transpose, against NumPy."""

import numpy as np
import pytest
from gpushmem.kernels.halo import HaloExchange, reference, reference_accumulate

import gpushmem as shmem
from tests.pes import lateness, repeated, some_of, whole_warps

LAUNCHES = [(n, whole_warps(threads)) for n, threads in ((1, 4), (3, 5), (2, 128))]
# Shape of PE 0's part, axis and width: the edge is one row, several, all rows; short lines, long.
CASES = [
    ((5,), 0, 1), ((3, 7), 0, 3), ((7, 4), 1, 2), ((300, 5), -1, 1), ((2, 3, 150), 1, 2),
    ((2, 0), 0, 1), ((3, 1, 2), 1, 1), ((33, 40), 0, 32),
]  # fmt: skip
DTYPES = ("float32", "float64", "float16", "int32")


def parts_of(n, shape, axis, dtype, more=0, uneven=True):
    """An array for each PE, of different lengths along the axis, which no two numbers share."""
    made = []
    for pe in range(n):
        rows = [
            k + (axis % len(shape) == j) * (pe % 2 * uneven + more) for j, k in enumerate(shape)
        ]
        made.append((100 * pe + np.arange(np.prod(rows)) % 97).reshape(rows).astype(dtype))
    return made


def every_case(dtypes):
    shmem.init()
    n, me = shmem.n_pes(), shmem.my_pe()
    cases = [(*c, p, *how) for c in CASES for p in (False, True) for how in LAUNCHES]
    for k, (shape, axis, width, periodic, blocks, threads) in enumerate(some_of(cases)):
        dtype = dtypes[k % len(dtypes)]
        with HaloExchange(
            shape=shape, width=width, axis=axis, dtype=dtype, periodic=periodic, blocks=blocks,
            threads=threads,
        ) as plan:  # fmt: skip
            for uneven in (True, False):  # each part has a row or none more than `shape` says
                parts = parts_of(n, shape, axis, dtype, uneven=uneven)
                wanted = reference(parts, width, axis, periodic)[me]
                x, out = shmem.to_device(parts[me]), shmem.device_array(wanted.shape, dtype)
                plan(x, out=out)
                np.testing.assert_array_equal(out.numpy(), wanted, str((shape, axis, width)))
                np.testing.assert_array_equal(x.numpy(), parts[me])
                halos = parts_of(n, shape, axis, dtype, 2 * width, uneven)
                plan.accumulate(shmem.to_device(halos[me]), out=x)
                wanted = reference_accumulate(halos, width, axis, periodic)[me]
                np.testing.assert_array_equal(x.numpy(), wanted, str((shape, axis, width)))
    shmem.finalize()


@pytest.mark.parametrize("n_pes", [1, 2, 3, pytest.param(5, marks=pytest.mark.sweep)])
def test_every_number_is_numpys(run_pes, n_pes):
    run_pes(every_case, n_pes, DTYPES if n_pes == 5 else DTYPES[:1], timeout=120)


@shmem.jit
def step(x, wide):
    """Replace each number by what depends on all that are seen, and stays exact: modulo a prime."""
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            x[i, j] = (3 * wide[i, j] + wide[i + 1, j] + 5 * wide[i + 2, j] + j + 1) % 8191


def many_calls(periodic, blocks, calls):
    shmem.init()
    n, me, late = shmem.n_pes(), shmem.my_pe(), lateness(0.03, 0.002)
    parts = parts_of(n, (2, 3), 0, "float32")
    plan = HaloExchange(
        shape=(2, 3), width=1, dtype="float32", periodic=periodic, blocks=blocks,
        threads=whole_warps(2),
    )  # fmt: skip
    x = shmem.to_device(parts[me])
    wide = shmem.device_array((len(parts[me]) + 2, 3), "float32")
    for call in range(calls):
        late()
        plan(x, out=wide)
        step[1, 1](x, wide)
        if call % 3 == 0:
            plan.accumulate(wide, out=x)
    got = x.numpy()
    for call in range(calls):
        halos = reference(parts, 1, 0, periodic)
        parts = [
            ((3 * w[:-2] + w[1:-1] + 5 * w[2:] + np.arange(3) + 1) % 8191).astype("float32")
            for w in halos
        ]
        if call % 3 == 0:
            parts = reference_accumulate(halos, 1, 0, periodic)
    np.testing.assert_array_equal(got, parts[me])
    shmem.finalize()


@pytest.mark.parametrize("calls", [500, pytest.param(2000, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("n_pes", "periodic", "blocks"), [(3, False, 1), (3, True, 2), (2, True, 1)]
)
def test_many_calls_without_a_barrier_while_pes_are_held_up(
    run_pes, n_pes, periodic, blocks, calls
):
    run_pes(many_calls, n_pes, periodic, blocks, repeated(calls), timeout=120)


def test_halos_in_place_in_teams_and_counted(run_pes):
    def body():
        shmem.init()
        me = shmem.my_pe()
        row = shmem.team_split_strided(shmem.TEAM_WORLD, 0, 2, 2)  # PEs 0 and 2; 1 is in none
        with HaloExchange(shape=(4, 3), width=2, dtype="float32", team=row, blocks=2) as plan:
            if not row:
                with pytest.raises(shmem.TeamError, match="not in the plan's team"):
                    plan(shmem.device_array((4, 3), "f4"), out=shmem.device_array((8, 3), "f4"))
            else:
                parts = parts_of(2, (4, 3), 0, "float32")
                wanted = reference(parts, 2)[me // 2]
                u = shmem.to_device(np.full_like(wanted, -1))
                u[2:-2].copy_from(parts[me // 2])
                plan(u[2:-2], out=u)
                np.testing.assert_array_equal(u.numpy(), wanted)
                assert plan.sends() == (2 * 3 * 4, 2)
        shmem.finalize()

    run_pes(body, 3)


def test_what_a_plan_is_not_for(run_pes):
    def body():
        shmem.init()
        array = lambda *shape: shmem.device_array(shape, "float32")  # noqa: E731
        for given, said in (
            ({"shape": ()}, "is not 1 or more numbers"),
            ({"axis": 2}, "axis must be -2 to 1"),
            ({"width": 0}, "width must be 1 to"),
        ):
            with pytest.raises(shmem.ArgumentError, match=said):
                HaloExchange(**{"shape": (4, 3), "width": 2, "dtype": "float32", **given})
        with HaloExchange(shape=(4, 3), width=2, dtype="float32", axis=0) as plan:
            for x, out, said in (
                (array(1, 3), array(5, 3), "x has 1 rows along axis 0, and a halo has 2: cut"),
                (array(4, 3), array(4, 3), r"out has shape \(4, 3\) .* for \(8, 3\) of float32"),
                (array(4, 4), array(8, 4), r"x has shape \(4, 4\)"),
                (array(4), array(8, 3), r"x has shape \(4,\)"),
            ):
                with pytest.raises(shmem.ArgumentError, match=said):
                    plan(x, out=out)
            with pytest.raises(shmem.ArgumentError, match="out has 1 rows along axis 0"):
                plan.accumulate(array(5, 3), out=array(1, 3))
        shmem.finalize()

    run_pes(body, 1)
