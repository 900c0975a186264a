"""All-gather, all-to-all, reduce-scatter, scan and broadcast as plans, against NumPy."""

import numpy as np
import pytest
from gpushmem.kernels import AllGather, AllToAll, Broadcast, ExclusiveScan, ReduceScatter

import gpushmem as shmem
from tests.pes import lateness, repeated, sendable, to_send, whole_warps

SIZES = (0, 1, 7, 33, 1000)
SHAPES = tuple((blocks, whole_warps(threads)) for blocks, threads in ((2, 4), (3, 32)))
PES = (1, 3, *(pytest.param(n, marks=pytest.mark.sweep) for n in (2, 4, 5, 8)))
SUMS = ReduceScatter, ExclusiveScan
KINDS = AllGather, AllToAll, *SUMS, Broadcast


def wanted(kind, parts, me):
    """What PE `me` of a team gets, from what all have, as (n, size) each."""
    if kind is AllGather:
        return np.concatenate([part[0] for part in parts])
    if kind is AllToAll:
        return np.concatenate([part[me] for part in parts])
    if kind is ReduceScatter:
        return sum(part[me] for part in parts)
    if kind is ExclusiveScan:
        return sum((part[0] for part in parts[:me]), np.zeros_like(parts[0][0]))
    return parts[-1][0]


def arguments(kind, n, size, dtype):
    """Elements of `x`, and of `out`; what else the plan takes."""
    sizes = {
        AllGather: (1, n), AllToAll: (n, n), ReduceScatter: (n, 1), ExclusiveScan: (1, 1),
        Broadcast: (1, 0),
    }[kind]  # fmt: skip
    options = {"size": size, "dtype": dtype} | ({"root": n - 1} if kind is Broadcast else {})
    return sizes[0] * size, sizes[1] * size, options


def called(plan, x, out):
    """Call it; returns where the result is."""
    if isinstance(plan, Broadcast):
        plan(x)
        return x
    plan(x, out=out)
    return out


@pytest.mark.parametrize("n_pes", PES)
@pytest.mark.parametrize("kind", KINDS)
def test_results_are_numpys(run_pes, n_pes, kind):
    def body():
        shmem.init()
        me, n = shmem.my_pe(), shmem.n_pes()
        for dtype in ("int64", "float16") if kind in SUMS else ("int64",):
            for size in SIZES:
                blocks, threads = SHAPES[size == 1000]
                of_x, of_out, options = arguments(kind, n, size, dtype)
                plan = kind(**options, blocks=blocks, threads=threads)
                out = shmem.device_array(of_out, dtype)
                for call in range(3):
                    each = np.arange(n * size).reshape(n, size) % 97
                    parts = [(each + 7 * pe + call).astype(dtype) for pe in range(n)]
                    x = to_send(parts[me].ravel()[:of_x])
                    got = called(plan, x, out).numpy()
                    np.testing.assert_array_equal(got, wanted(kind, parts, me), f"{dtype} {size}")
                plan.free()
        shmem.finalize()

    run_pes(body, n_pes)


@pytest.mark.parametrize("kind", KINDS)
def test_many_calls_without_a_barrier(run_pes, kind):
    """Some PEs are late now and then; pieces are small, so that a call is several epochs."""
    calls = repeated(100, if_checked=5)

    def body():
        shmem.init()
        me, n, size = shmem.my_pe(), shmem.n_pes(), 700
        of_x, of_out, options = arguments(kind, n, size, "int64")
        plan = kind(**options, blocks=2, threads=whole_warps(4))
        plan.piece = 32
        x, out = sendable(shmem.device_array(of_x, "int64")), shmem.device_array(of_out, "int64")
        late = lateness(0.05, 0.01)
        for call in range(calls):
            x.copy_from((np.arange(of_x) + 100_000 * me + call).astype("int64"))
            got = called(plan, x, out)
            late()
            each = np.arange(n * size).reshape(n, size)
            parts = [each + 100_000 * pe + call for pe in range(n)]
            np.testing.assert_array_equal(got.numpy(), wanted(kind, parts, me), f"call {call}")
        shmem.finalize()

    run_pes(body, 5)


@pytest.mark.parametrize("kind", KINDS)
def test_in_a_team_and_refused(run_pes, kind):
    """In two teams at the same time: the even PEs, and the odd ones, in reverse."""

    def body():
        shmem.init()
        me, n = shmem.my_pe(), shmem.n_pes()
        odd = me % 2
        teams = [
            shmem.team_split_strided(shmem.TEAM_WORLD, start, 2, len(range(start, n, 2)))
            for start in (0, 1)
        ]
        team = teams[odd]
        of_x, of_out, options = arguments(kind, team.n_pes, 10, "int64")
        plan = kind(**options, team=team, threads=whole_warps(4))
        each = np.arange(10 * team.n_pes).reshape(team.n_pes, 10)
        parts = [each + 1000 * pe for pe in range(odd, n, 2)]
        x, out = to_send(parts[me // 2].ravel()[:of_x]), shmem.device_array(of_out, "int64")
        got = called(plan, x, out).numpy()
        np.testing.assert_array_equal(got, wanted(kind, parts, me // 2))
        with pytest.raises(shmem.ArgumentError, match="x has shape"):
            called(plan, shmem.device_array(3, "float32"), out)
        with pytest.raises(shmem.ArgumentError, match="size is -1"):
            kind(**options | {"size": -1})
        if kind is Broadcast:
            with pytest.raises(shmem.ArgumentError, match="root is 9; the team has 4 PEs"):
                Broadcast(size=1, dtype="int32", root=9)
        shmem.finalize()

    run_pes(body, 4)
