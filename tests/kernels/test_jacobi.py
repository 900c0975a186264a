"""Jacobi iteration on cut grids against NumPy: the same bits, halos and all."""

import numpy as np
import pytest
from gpushmem.kernels.jacobi import Jacobi, cut, for_gpus, reference, smallest_faces

import gpushmem as shmem
from tests.pes import lateness, repeated, some_of, whole_warps

BLOCKS_AND_THREADS = [(n, whole_warps(threads)) for n, threads in ((1, 1), (2, 4), (3, 32))]
# By the number of PEs, shapes and grids: they do not divide, and have parts of 1 and 2 cells.
GRIDS = {
    1: [((5, 7), (1, 1)), ((1, 1), (1, 1)), ((5, 4, 21), (1, 1, 1))],
    2: [((5, 7), (2, 1)), ((5, 7), (1, 2)), ((2, 3, 40), (1, 1, 2)), ((4, 3, 2), (1, 2, 1))],
    3: [((15, 19), (3, 1)), ((9, 4), (1, 3)), ((7, 2, 3), (3, 1, 1))],
    4: [((5, 7), (2, 2)), ((2, 2), (2, 2)), ((3, 5, 4), (1, 2, 2)), ((6, 9), (4, 1))],
    5: [((11, 70), (5, 1)), ((2, 5, 3), (1, 5, 1))],
    8: [((5, 9), (2, 4)), ((3, 5, 7), (2, 2, 2))],
}
TRIED = [("float64", False), ("float32", True), ("float16", "first"), ("float64", "last")]
SOME = [TRIED[0], TRIED[3], ("float64", True)]  # where tests are quick
# PEs, and whether with few dtypes.
PES = [(1, True), (3, True), (4, True)]
PES += [pytest.param(n, False, marks=pytest.mark.sweep) for n in GRIDS]


def some_field(shape, dtype):
    """No two cells are equal, and every PE makes the same."""
    count = int(np.prod([n + 2 for n in shape]))
    numbers = np.random.default_rng(7).permutation(count) / count
    return numbers.reshape([n + 2 for n in shape]).astype(dtype)


def periodic_axes(which, ndim):
    if isinstance(which, bool):
        return which
    return tuple(axis == (0 if which == "first" else ndim - 1) for axis in range(ndim))


def own_part(plan, field):
    """What `u` should be, and where it counts: not in corners, where nobody looks."""
    part = field[tuple(slice(s.start, s.stop + 2) for s in plan.local)]
    outer = sum(
        ((k == 0) | (k == n - 1)).astype(int)
        for k, n in zip(np.indices(part.shape), part.shape, strict=True)
    )
    return part, outer < 2


def all_cases(n_pes, few):
    shmem.init()
    cases = [
        (shape, grid, dtype, periodic_axes(which, len(shape)), how)
        for shape, grid in GRIDS[n_pes]
        for dtype, which in (SOME if few else TRIED)
        for how in BLOCKS_AND_THREADS[few:]
    ]
    for shape, grid, dtype, periodic, (blocks, threads) in some_of(cases):
        with Jacobi(
            shape=shape, grid=grid, dtype=dtype, periodic=periodic, blocks=blocks, threads=threads
        ) as plan:
            if blocks == 2:
                size = plan.dtype.itemsize
                plan._kernel = for_gpus(len(shape), plan.local_shape[-1], size)  # as on GPUs
            field = reference(some_field(shape, dtype), 0, periodic)
            u = plan.scatter(field)
            at_first = u.numpy()
            inner = (slice(1, -1),) * len(shape)
            for iterations in (1, 2, 5, 4):
                before = reference(field, iterations - 1, periodic)
                field = reference(field, iterations, periodic)
                plan(u, iterations)
                expected, counts = own_part(plan, field)
                got = u.numpy()
                about = f"{shape} {grid} {dtype} {periodic} {blocks} {threads}"
                np.testing.assert_array_equal(got[counts], expected[counts], about)
                np.testing.assert_array_equal(got[~counts], at_first[~counts], about)
                np.testing.assert_array_equal(plan.gather(u), field[inner])
                assert plan.residual(u) == np.abs(field - before)[inner].max()
    shmem.finalize()
    return len(cases)


@pytest.mark.parametrize(("n_pes", "few"), PES)
def test_every_bit_is_numpys(run_pes, n_pes, few):
    run_pes(all_cases, n_pes, n_pes, few, timeout=120)


@shmem.jit
def keep(log, u, call):
    for i in range(u.shape[0]):
        for j in range(u.shape[1]):
            log[call, i, j] = u[i, j]


def many_calls(periodic, blocks, threads, calls):
    shmem.init()
    shape, late = (7, 6), lateness(0.03, 0.002)
    plan = Jacobi(
        shape=shape, dtype="float64", periodic=periodic, blocks=blocks, threads=whole_warps(threads)
    )
    field = reference(some_field(shape, "float64"), 0, periodic)
    u = plan.scatter(field)
    log = shmem.device_array((calls, *u.shape), "float64")
    steps = [1 + call % 3 for call in range(calls)]
    for call, iterations in enumerate(steps):
        late()
        plan(u, iterations)
        keep[1, 1](log, u, call)
    log = log.numpy()
    for call, iterations in enumerate(steps):
        field = reference(field, iterations, periodic)
        expected, counts = own_part(plan, field)
        np.testing.assert_array_equal(log[call][counts], expected[counts], f"call {call}")
    plan.free()
    shmem.finalize()


@pytest.mark.parametrize("calls", [500, pytest.param(2000, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("n_pes", "periodic", "blocks", "threads"),
    [(3, False, 1, 3), (4, True, 1, 1), (2, (True, False), 2, 3)],
)
def test_many_calls_without_a_barrier_while_pes_are_held_up(
    run_pes, n_pes, periodic, blocks, threads, calls
):
    run_pes(many_calls, n_pes, periodic, blocks, threads, repeated(calls), timeout=120)


def test_cells_that_were_changed_reach_the_neighbours(run_pes):
    def body():
        shmem.init()
        shape, me = (8, 5), shmem.my_pe()
        with Jacobi(
            shape=shape, grid=(2, 2), dtype="float32", blocks=2, threads=whole_warps(2)
        ) as plan:
            owner = np.full([n + 2 for n in shape], -1, "float32")
            for pe in range(4):
                own = plan._part(pe)
                rows, columns = (np.arange(s.start + 1, s.stop + 1) for s in own)
                owner[np.ix_(rows, columns)] = 1000 * pe + np.arange(columns.size)
            u = plan.scatter(np.full_like(owner, -1))
            expected, counts = own_part(plan, owner)
            mine = u.numpy()
            mine[1:-1, 1:-1] = 1000 * me + np.arange(mine.shape[1] - 2)
            u.copy_from(mine)
            plan.exchange(u)
            np.testing.assert_array_equal(u.numpy()[counts], expected[counts])
            plan(u, 3)
            np.testing.assert_array_equal(plan.gather(u), reference(owner, 3)[1:-1, 1:-1])
        shmem.finalize()

    run_pes(body, 4)


def test_two_teams_at_once_and_a_pe_in_none(run_pes):
    def body():
        shmem.init()
        me = shmem.my_pe()
        column = shmem.team_split_2d(shmem.TEAM_WORLD, 2)[1]
        shape = (7, 4) if me % 2 else (9, 11)  # columns of 3 and 4 PEs
        with Jacobi(shape=shape, dtype="float64", team=column) as plan:
            field = some_field(shape, "float64") + me % 2
            u = plan.scatter(field)
            plan(u, 7)
            np.testing.assert_array_equal(plan.gather(u), reference(field, 7)[1:-1, 1:-1])
        three = shmem.team_split_strided(shmem.TEAM_WORLD, 1, 2, 3)
        with Jacobi(shape=(3, 3), grid=(1, 3), team=three, periodic=True) as plan:
            field = some_field((3, 3), "float64")
            if three:
                u = plan.scatter(field)
                plan(u, 2)
                expected = reference(field, 2, periodic=True)[1:-1, 1:-1]
                np.testing.assert_array_equal(plan.gather(u), expected)
            else:
                plan.gather(None)
                with pytest.raises(shmem.TeamError, match="not in the plan's team"):
                    plan(shmem.device_array((5, 3), "float64"), 2)
        shmem.finalize()

    run_pes(body, 7)


def test_what_a_plan_is_not_for(run_pes):
    def body():
        shmem.init()
        wrong = [
            ({"shape": (4,)}, "shape .4,. is not 2 or 3"),
            ({"shape": (4, 0)}, "is not 2 or 3 numbers from 1"),
            ({"shape": (4, 4), "grid": (1, 1), "dtype": "int64"}, "dtype int64 is not one of"),
            ({"shape": (4, 4), "grid": (1, 1, 2)}, "shape .4, 4. has 2 axes, grid .1, 1, 2. 3"),
            ({"shape": (4, 4), "grid": (1, 3)}, "grid .1, 3. is for 3 PEs, the team has 2"),
            ({"shape": (1, 4), "grid": (2, 1)}, "more parts than it has cells"),
            ({"shape": (1, 1)}, "cannot be cut for 2 PEs"),
        ]
        for arguments, message in wrong:
            with pytest.raises(shmem.ArgumentError, match=message):
                Jacobi(**arguments)
        with Jacobi(shape=(4, 4), grid=(2, 1), dtype="float32") as plan:
            for shape, dtype in [((4, 4), "float32"), ((4, 6), "float64")]:
                with pytest.raises(
                    shmem.ArgumentError, match=r"the plan is for \(4, 6\) of float3"
                ):
                    plan(shmem.device_array(shape, dtype), 1)
            with pytest.raises(shmem.ArgumentError, match="0 iterations, at least 1"):
                plan(shmem.device_array((4, 6), "float32"), 0)
            with pytest.raises(shmem.ArgumentError, match="field has shape"):
                plan.scatter(np.zeros((4, 4), "float32"))
        shmem.finalize()

    run_pes(body, 2)


def test_what_is_sent_is_counted(run_pes):
    def body():
        shmem.init()
        sent = []
        for shape, grid, periodic in [((6, 10), (2, 2), False), ((4, 6, 8), (1, 4, 1), True)]:
            with Jacobi(
                shape=shape, grid=grid, dtype="float32", periodic=periodic, blocks=2
            ) as plan:
                sent.append(plan.sends(3))
        shmem.finalize()
        return sent

    planes_and_cells = (3 * (7 + 3) * 4, 3 * (1 + 2)), (3 * 2 * (4 * 10) * 4, 3 * 2 * 2)
    assert run_pes(body, 4) == [list(planes_and_cells)] * 4


def test_parts_are_those_of_array_split():
    for n in range(1, 12):
        for parts in range(1, n + 1):
            starts = [p[0] for p in np.array_split(np.arange(n), parts)]
            assert [cut(n, parts, k) for k in range(parts + 1)] == [*starts, n]


@pytest.mark.parametrize(
    ("shape", "n_pes", "grid"),
    [
        ((100, 100), 2, (2, 1)), ((100, 100), 4, (2, 2)), ((10, 100), 4, (1, 4)),
        ((64, 64, 64), 8, (2, 2, 2)), ((3, 64, 64), 4, (1, 2, 2)), ((1, 5), 5, (1, 5)),
    ],
)  # fmt: skip
def test_grids_are_cut_so_that_little_is_sent(shape, n_pes, grid):
    assert smallest_faces(shape, n_pes) == grid
