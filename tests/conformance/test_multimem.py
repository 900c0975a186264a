"""`multimem_reduce` and `multimem_store`: each scope, reduction and dtype; after signals."""

import functools
import time

import numpy as np
import pytest
from numba import cuda

import gpushmem as shmem
from gpushmem import ArgumentError, SymmetryError, TeamError
from gpushmem.ops.roles import SwitchReduction
from tests import pes
from tests.pes import compile_first, repeated

INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
FLOATS = ["float16", "bfloat16", "float32", "float64"]
# The function in NumPy, the dtypes, and those of them that are always tested.
REDUCTIONS = {
    "sum": (np.add, [*INTEGERS, *FLOATS, "complex64"], ["int64", "bfloat16", "float32"]),
    "min": (np.minimum, [*INTEGERS, *FLOATS], ["float16"]),
    "max": (np.maximum, [*INTEGERS, *FLOATS], ["int64", "float64"]),
    "and": (np.bitwise_and, INTEGERS, ["int32"]),
    "or": (np.bitwise_or, INTEGERS, ["uint16"]),
    "xor": (np.bitwise_xor, INTEGERS, ["uint32"]),
}
CASES = [
    pytest.param(op, dtypes, marks=() if dtypes is some else pytest.mark.sweep, id=f"{op}-{what}")
    for op, (_, every, some) in REDUCTIONS.items()
    for what, dtypes in (("some", some), ("every", every))
]
SIZES = [0, 1, 3, 97]
THREADS = 1, 32, 70  # that call: a thread, a warp, a block
AROUND = 5
SUMS_DIFFER = pes.ON_GPUS  # a switch adds in an order of its own
NEAR = pes.on_several_nodes("the team has PEs on several")


def numbers_of(pe, dtype, n):
    """Different for each PE and element; sums are no multiples of powers of two."""
    rng = np.random.default_rng(1000 + pe)
    if np.dtype(dtype).kind in "iu":
        return np.frombuffer(rng.bytes(n * np.dtype(dtype).itemsize), dtype)
    values = rng.normal(size=n)
    return (values + 1j * rng.normal(size=n) if dtype == "complex64" else values).astype(dtype)


def combined(sources, op):
    dtype = sources[0].dtype
    wide = np.float32 if dtype.itemsize == 2 and dtype.kind not in "iu" else dtype
    with np.errstate(over="ignore"):
        total = functools.reduce(REDUCTIONS[op][0], [source.astype(wide) for source in sources])
    return total.astype(dtype)


@functools.cache
def kernel_of(op):
    scope = {"shmem": shmem}
    exec(
        f"""def kernel(scope, dst, src, team):
    if scope == 0:
        shmem.multimem_reduce(dst, src, team, {op!r})
    elif scope == 1:
        shmem.multimem_reduce_warp(dst, src, team, {op!r})
    else:
        shmem.multimem_reduce_block(dst, src, team, {op!r})
""",
        scope,
    )
    return shmem.jit(scope["kernel"])


def compile_for(op, dtype):
    array = np.zeros(1, dtype)
    compile_first(kernel_of(op), 0, array, array, shmem.TEAM_WORLD, threads=32)


def teams():
    """All near PEs, every second of them, the last alone; with the numbers of their PEs."""
    n = shmem.team_n_pes(shmem.TEAM_SHARED)
    shapes = [(0, 2, (n + 1) // 2), (n - 1, 1, 1)]
    made = [shmem.team_split_strided(shmem.TEAM_SHARED, *shape) for shape in shapes]
    for team in (shmem.TEAM_SHARED, *made):
        if team != shmem.TEAM_INVALID:
            ranks = range(shmem.team_n_pes(team))
            yield team, [shmem.team_translate_pe(team, k, shmem.TEAM_WORLD) for k in ranks]


def check(team, members, op, dtype, scope, n):
    """One call, on parts of arrays that begin at odd elements."""
    whole, first, at = shmem.empty(n + 2 * AROUND, dtype), 1, 3
    whole.copy_from(numbers_of(shmem.my_pe(), dtype, whole.size))
    dst = shmem.full(n + 2 * AROUND, 7, dtype)
    time.sleep(0.002 * (shmem.my_pe() * n % 3))
    shmem.barrier_all()
    kernel_of(op)[1, THREADS[scope]](scope, dst[at:], whole[first : first + n], team)
    got, wanted = dst.numpy(), np.full(dst.size, 7, dtype)
    sources = [numbers_of(pe, dtype, whole.size)[first : first + n] for pe in members]
    wanted[at : at + n] = combined(sources, op)
    if SUMS_DIFFER and op == "sum" and np.dtype(dtype).kind not in "iu":
        slack = {2: 0.05, 4: 1e-5}.get(np.dtype(dtype).itemsize, 1e-5)
        np.testing.assert_allclose(got.astype("c16"), wanted.astype("c16"), slack, slack)
    else:
        np.testing.assert_array_equal(got, wanted, err_msg=f"{op} {dtype} {scope} {n} {members}")
    np.testing.assert_array_equal(whole.numpy(), numbers_of(shmem.my_pe(), dtype, whole.size))
    shmem.barrier_all()
    shmem.free(dst)
    shmem.free(whole)


@pytest.mark.parametrize("n_pes", [1, 3, pytest.param(4, marks=pytest.mark.sweep)])
@pytest.mark.parametrize(("op", "dtypes"), CASES)
def test_elements_of_all_members_are_combined(run_pes, n_pes, op, dtypes):
    for dtype in dtypes:
        compile_for(op, dtype)

    def body():
        shmem.init()
        mine = [*teams()]
        for dtype in dtypes:
            for scope in range(len(THREADS)):
                for k, n in enumerate(SIZES):
                    check(*mine[k % len(mine)] if k else mine[0], op, dtype, scope, n)
        shmem.finalize()

    run_pes(body, n_pes)


def test_all_reductions_are_tested():
    assert tuple(REDUCTIONS) == SwitchReduction.names


@shmem.jit
def two_shot(x, team, n):
    """Each PE sums its part of `x` of all, in place, and stores it on all, itself too."""
    me = shmem.team_my_pe(team)
    part = x[me * n : (me + 1) * n]
    shmem.multimem_reduce_block(part, part, team, "sum")
    shmem.multimem_store_block(part, part, team)
    shmem.barrier_block(team)


@pytest.mark.parametrize("n_pes", [1, 3])
def test_in_place_as_an_all_reduce_of_two_shots(run_pes, n_pes):
    compile_first(two_shot, np.zeros(1, "int64"), shmem.TEAM_WORLD, 1, threads=32)

    def body():
        shmem.init()
        near = shmem.team_n_pes(shmem.TEAM_SHARED)
        n = 37
        x = shmem.array(1000 * shmem.my_pe() + np.arange(near * n))
        two_shot[1, 32](x, shmem.TEAM_SHARED, n)
        got = x.numpy()
        members = [shmem.team_translate_pe(shmem.TEAM_SHARED, k, 0) for k in range(near)]
        shmem.finalize()
        return got, members

    for got, members in run_pes(body, n_pes):
        wanted = sum(1000 * pe + np.arange(got.size) for pe in members)
        np.testing.assert_array_equal(got, wanted)


@shmem.jit(collective=True)
def rounds(x, out, flags, team, n):
    """PEs change `x` when all have summed it, and tell each other so by signals alone."""
    me, members, i = shmem.team_my_pe(team), shmem.team_n_pes(team), cuda.threadIdx.x
    for k in range(n):
        for j in range(i, x.size, cuda.blockDim.x):
            x[j] = 100 * (me + 1) * (k + 1) + j
        for when in range(2):
            cuda.syncthreads()
            if i == 0:
                shmem.quiet()
                for rank in range(members):
                    pe = shmem.team_translate_pe(team, rank, 0)
                    shmem.signal_op(flags[me:], 2 * k + when + 1, shmem.SIGNAL_SET, pe)
                for rank in range(members):
                    shmem.signal_wait_until(flags[rank:], shmem.CMP_GE, 2 * k + when + 1)
            cuda.syncthreads()
            if when == 0:
                shmem.multimem_reduce_block(out[k], x, team, "sum")


@pytest.mark.parametrize("n_pes", [1, 3, pytest.param(5, marks=pytest.mark.sweep)])
def test_what_signals_tell_of_is_included(run_pes, n_pes):
    line, flags = np.zeros(1, "int64"), np.zeros(1, "uint64")
    compile_first(rounds, line, line.reshape(1, 1), flags, shmem.TEAM_WORLD, 1, threads=32)
    n, width = repeated(20, if_checked=4), 40

    def body():
        shmem.init()
        x, flags = shmem.zeros(width, "int64"), shmem.zeros(n_pes, "uint64")
        out = shmem.device_array((n, width), "int64")
        rounds[1, 32](x, out, flags, shmem.TEAM_SHARED, n)
        got, near = out.numpy(), shmem.team_n_pes(shmem.TEAM_SHARED)
        shmem.finalize()
        return got, near

    for got, near in run_pes(body, n_pes):
        k, j = np.indices(got.shape)
        np.testing.assert_array_equal(got, near * (near + 1) // 2 * 100 * (k + 1) + near * j)


@shmem.jit
def store(scope, dst, src, team):
    if scope == 0:
        shmem.multimem_store(dst, src, team)
    elif scope == 1:
        shmem.multimem_store_warp(dst, src, team)
    else:
        shmem.multimem_store_block(dst, src, team)


STORED = ["int8", "float16", "float32", "int64", "complex128"]
PLACES = [(3, 3, 0), (3, 3, 1), (3, 1, 97), (2, 6, 300)]  # of dst, of src, elements
STORES = [(scope, *place) for scope in range(len(THREADS)) for place in PLACES]


@pytest.mark.parametrize("n_pes", [1, 3, pytest.param(5, marks=pytest.mark.sweep)])
@pytest.mark.parametrize(
    "dtype",
    [pytest.param(d, marks=() if d in ("float16", "int64") else pytest.mark.sweep) for d in STORED],
)
def test_what_one_stores_all_members_have(run_pes, n_pes, dtype):
    """Each PE to a row of its own, for a team of its own choice; who is no member has nothing."""
    line = np.zeros(1, dtype)
    compile_first(store, 0, line, line, shmem.TEAM_WORLD, threads=32)

    def body():
        shmem.init()
        mine, result = [*teams()], []
        for k, (scope, at, first, n) in enumerate(STORES):
            team, members = mine[k % len(mine)]
            dst = shmem.full((n_pes, 310), 7, dtype)
            src = shmem.to_device(numbers_of(shmem.my_pe(), dtype, first + n))
            shmem.barrier_all()
            store[1, THREADS[scope]](scope, dst[shmem.my_pe(), at:], src[first:], team)
            shmem.barrier_all()
            result.append((dst.numpy(), members))
            shmem.free(dst)
        shmem.finalize()
        return result

    results = run_pes(body, n_pes)
    for me, result in enumerate(results):
        for k, ((_, at, first, n), (got, _)) in enumerate(zip(STORES, result, strict=True)):
            wanted = np.full_like(got, 7)
            for pe in range(n_pes):
                if me in results[pe][k][1]:
                    wanted[pe, at : at + n] = numbers_of(pe, dtype, first + n)[first:]
            np.testing.assert_array_equal(got, wanted, f"{STORES[k]} on PE {me}")


@shmem.jit(collective=True)
def told(x, got, signals, team):
    """Every member stores its row on all, and tells them after a fence, again and again."""
    me, n, i = shmem.team_my_pe(team), shmem.team_n_pes(team), cuda.threadIdx.x
    size = x.shape[2]
    for k in range(got.shape[0]):
        for j in range(i, size, cuda.blockDim.x):
            got[k, me, j] = 1000 * me + 10 * k + j
        cuda.syncthreads()
        shmem.multimem_store_block(x[k % 2, me], got[k, me], team)
        if i == 0:
            shmem.fence()
            for rank in range(n):
                pe = shmem.team_translate_pe(team, rank, shmem.TEAM_WORLD)
                shmem.signal_op(signals[me:], k + 1, shmem.SIGNAL_SET, pe)
            shmem.wait_until_all(signals[:n], None, shmem.CMP_GE, k + 1)
        cuda.syncthreads()
        for rank in range(n):
            shmem.copy_block(got[k, rank], x[k % 2, rank])


@pytest.mark.parametrize("n_pes", [1, 3, pytest.param(5, marks=pytest.mark.sweep)])
def test_who_is_told_after_a_fence_has_what_was_stored(run_pes, n_pes):
    x, got = np.zeros((2, 1, 1), "int64"), np.zeros((1, 1, 1), "int64")
    compile_first(told, x, got, np.zeros(1, "uint64"), shmem.TEAM_SHARED, threads=32)
    rounds, size = repeated(20, if_checked=4), 37

    def body():
        shmem.init()
        near = shmem.team_n_pes(shmem.TEAM_SHARED)
        x, signals = shmem.zeros((2, n_pes, size), "int64"), shmem.zeros(n_pes, "uint64")
        got = shmem.device_array((rounds, near, size), "int64")
        told[1, 32](x, got, signals, shmem.TEAM_SHARED)
        result = got.numpy()
        shmem.finalize()
        return result

    for result in run_pes(body, n_pes):
        k, rank, j = np.indices(result.shape)
        np.testing.assert_array_equal(result, 1000 * rank + 10 * k + j)


@pytest.mark.checked
def test_what_is_refused(run_pes):
    def body():
        shmem.init()
        x, here = shmem.zeros(4, "int64"), shmem.device_array(4, "int64")
        for dst, src, team, kind, text in (
            (here[:3], x, 0, ArgumentError, "the target has 3 elements, the source 4"),
            (x, here, 0, SymmetryError, "not on the symmetric heap"),
            (here, x, 99, TeamError, "there is no team 99"),
            (here, x, shmem.TEAM_INVALID, TeamError, "there is no team -1"),
        ):
            with pytest.raises(kind, match=f"multimem_reduce_block: .*{text}|{text}"):
                kernel_of("sum")[1, 32](2, dst, src, team)
                shmem.synchronize()
        for dst, src, team, kind, text in (
            (x[:3], here, 0, ArgumentError, "the target has 3 elements, the source 4"),
            (here, x, 0, SymmetryError, "not on the symmetric heap"),
            (x, here, 99, TeamError, "there is no team 99"),
        ):
            with pytest.raises(kind, match=f"multimem_store_block: .*{text}|{text}"):
                store[1, 32](2, dst, src, team)
                shmem.synchronize()
        shmem.finalize()

    run_pes(body, 1)


@pytest.mark.parametrize(
    ("op", "dtypes", "text"),
    [
        ("prod", ["int32", "int32"], "op must be one of 'sum', 'min', 'max', 'and', 'or', 'xor'"),
        ("and", ["float32", "float32"], '"and" is of integers, not of float32'),
        ("sum", ["int32", "int64"], "dst is an array of int32, src of int64"),
    ],
)
def test_calls_that_do_not_compile(alone, op, dtypes, text):
    arrays = [shmem.zeros(4, dtype) for dtype in dtypes]
    with pytest.raises(Exception, match=f"multimem_reduce: .*{text}"):
        kernel_of(op)[1, 1](0, *arrays, shmem.TEAM_WORLD)
