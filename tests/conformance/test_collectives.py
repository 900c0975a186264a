"""Collectives: every row, scope, dtype and size, on teams of all shapes, compared with NumPy.

Data is different for every PE and element. Before a call `dst` is poison, also around the place
where the result belongs; nothing but the result may have changed. PEs come late at random: whoever
returns may use its `src` and `dst` at once. On the cpu backend there are no barriers between the
calls, since nobody writes to the `dst` of a PE that has not called.
"""

import functools
import time
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import pytest
from ml_dtypes import finfo
from numba import cuda

import gpushmem as shmem
from gpushmem.backends.cpu.sync.barrier import TEXT_BYTES
from gpushmem.backends.cpu.sync.world import BOX_BYTES
from gpushmem.ops import OPS
from tests import gpus, pes
from tests.pes import compile_first, repeated

PES = [1, 3, *(pytest.param(n, marks=pytest.mark.sweep) for n in (2, 4, 8))]
# Of blocks in which a thread, a warp, a block calls. The kernels of test_barriers contain all
# three calls; that of a block needs whole warps on GPUs.
THREADS = (32 if pes.ON_GPUS else 1, 32, 96)
ONE_CALLS = "if cuda.threadIdx.x == 0: " * pes.ON_GPUS
THREAD, WARP, BLOCK, HOST, STREAM = range(5)  # where a call is made
SUFFIXES = "", "_warp", "_block"
SCOPES = THREAD, WARP, BLOCK
READY_FIRST = pes.BACKEND != "cpu"  # `dst` may be written before the PE calls
NANS = pes.BACKEND == "cpu"  # see `test_nan_wins`
SEGMENT = 1 << 15  # bytes that NVSHMEM's reductions of more take in rounds
SCRATCH = 1 << 18  # bytes that it has for reductions of parts
AROUND = 8  # elements after the result that must stay as they are
PAIR = np.dtype([("a", "i1"), ("b", "f8"), ("c", "i2", 3)])
FOUND = np.dtype([("v", "f8"), ("i", "i8")])
FOUND_SMALL = np.dtype([("v", "i4"), ("i", "i4")])
INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
REAL = [*INTEGERS, "float16", "bfloat16", "float32", "float64"]
NUMBERS = [*REAL, "complex64", "complex128"]


def is_real(dtype):
    return dtype.kind == "f" or dtype == "bfloat16"


def maxloc(a, b):
    earlier = (a["v"] > b["v"]) | ((a["v"] == b["v"]) & (a["i"] <= b["i"]))
    return np.where(earlier, a, b)


# How two arrays are combined, the dtypes there are, and those that are always tested.
REDUCTIONS = {
    "sum": (np.add, NUMBERS, ["int64", "int8", "bfloat16"]),
    "prod": (np.multiply, NUMBERS, ["uint64"]),
    "min": (np.minimum, REAL, ["float32"]),
    "max": (np.maximum, REAL, ["int32", "float16"]),
    "and": (np.bitwise_and, INTEGERS, ["uint32"]),
    "or": (np.bitwise_or, INTEGERS, ["int16"]),
    "xor": (np.bitwise_xor, INTEGERS, ["int64"]),
    "maxloc": (maxloc, [FOUND, FOUND_SMALL], [FOUND, FOUND_SMALL]),
}
COPIED = [*NUMBERS, "bool", "float8_e4m3fn", "float8_e5m2", PAIR]
COPIES = ("broadcast", "fcollect", "collect", "alltoall", "alltoalls")
ROWS = [(base, None) for base in COPIES] + [
    (base, op) for base in ("reduce", "reducescatter") for op in REDUCTIONS
]
FOLDED = ("prod", "min", "and", "or", "xor")  # by reducescatter just as by reduce


# --- what a collective has to do, in NumPy


def part(array, rank, n):
    return np.split(array, n)[rank]


def combined(sources, op):
    with np.errstate(all="ignore"):
        return functools.reduce(REDUCTIONS[op][0], sources)


def sent_by(source, rank, stride, n):
    return source[::stride][rank * n : (rank + 1) * n]


# The result on the member `rank`, of all members' `src` and the call's further arguments.
RESULTS = {
    "broadcast": lambda rank, sources, root: sources[root],
    "fcollect": lambda rank, sources: np.concatenate(sources),
    "collect": lambda rank, sources: np.concatenate(sources),
    "alltoall": lambda rank, sources: np.concatenate(
        [part(source, rank, len(sources)) for source in sources]
    ),
    "alltoalls": lambda rank, sources, _, stride, n: np.concatenate(
        [sent_by(source, rank, stride, n) for source in sources]
    ),
    "reduce": lambda rank, sources, op: combined(sources, op),
    "reducescatter": lambda rank, sources, op: part(combined(sources, op), rank, len(sources)),
}


def source_size(base, n, rank, n_team, stride):
    """Elements of `src` for a message of `n` elements."""
    return {
        "collect": n + rank, "alltoall": n * n_team, "reducescatter": n * n_team,
        "alltoalls": max(0, (n * n_team - 1) * stride + 1),
    }.get(base, n)  # fmt: skip


@cache
def numbers(pe, dtype):
    """Numbers that differ from PE to PE and from element to element; a prime number of them."""
    rng, n = np.random.default_rng(pe), 9973
    dtype = np.dtype(dtype)
    if dtype in (FOUND, FOUND_SMALL):
        found = np.zeros(n, dtype)
        found["v"], found["i"] = rng.integers(0, 3, n), rng.integers(0, 1000, n)
        return found
    if dtype.kind == "b":
        return rng.integers(0, 2, n).astype(bool)
    if is_real(dtype):
        values = rng.normal(size=n).astype(dtype)
        if NANS:
            values[pe::101] = np.nan
        return values
    if dtype.kind == "c":  # exact, whichever way they are multiplied
        return (rng.integers(-3, 4, n) + 1j * rng.integers(-3, 4, n)).astype(dtype)
    return np.frombuffer(rng.bytes(n * dtype.itemsize), dtype)


def numbers_of(pe, dtype, first, n):
    return np.resize(np.roll(numbers(pe, dtype), -first), n)


def poison(dtype):
    return np.frombuffer(b"\xa5" * np.dtype(dtype).itemsize, dtype)[0]


def alike(a, b):
    """Bit by bit, but that any NaN is as good as any other."""
    if is_real(a.dtype) and np.array_equal(a, b, equal_nan=True):
        return True
    return a.tobytes() == b.tobytes()


# --- the calls


@cache
def kernel_of(base, op, where):
    """A kernel that makes the call in one of the scopes; it is compiled for each dtype."""
    more = OPS[base].params[3:] if op is None else ()
    call = "(team, dst, src" + "".join(f", {p}" for p in more) + (f", {op!r})" if op else ")")
    scope, once = {"shmem": shmem, "cuda": cuda}, ONE_CALLS if where == THREAD else ""
    exec(
        f"""def {base}_{op}({", ".join(("team", "dst", "src", *more))}):
    {once}shmem.{base}{SUFFIXES[where]}{call}
""",
        scope,
    )
    return shmem.jit(scope[f"{base}_{op}"])


def compile_for(base, op, dtype, *places):
    """For calls from these places."""
    array = np.zeros(1, dtype)
    more = [1 for _ in OPS[base].params[3:]] if op is None else []
    for where in places:
        if where in (HOST, STREAM):
            compile_first(getattr(shmem, base), 0, array, array, *(more if op is None else [op]))
        else:
            kernel = kernel_of(base, op, where)
            args = shmem.TEAM_WORLD, array, array, *more
            compile_first(kernel, *args, threads=THREADS[where])


def call(where, base, op, team, dst, src, more):
    function = getattr(shmem, base)
    if where in (HOST, STREAM):
        stream = shmem.stream() if where == STREAM else None
        function(team, dst, src, *more, *([op] if op else []), stream=stream)
        if stream is not None:
            stream.synchronize()
    else:
        kernel_of(base, op, where)[1, THREADS[where]](team, dst, src, *more)


class Members(NamedTuple):
    """A team, and the PEs of the job that are in it."""

    team: shmem.Team
    pes: Sequence[int]


def teams_of(n_pes):
    """All PEs, every second one, all in reverse, one alone; three in no order."""
    shapes = [(0, 2, (n_pes + 1) // 2), (n_pes - 1, -1, n_pes), (n_pes - 1, 1, 1)]
    shapes = [shape for shape in shapes if pes.BACKEND == "cpu" or shape[1] > 0]  # NVSHMEM's are
    teams = [Members(shmem.TEAM_WORLD, range(n_pes))] + [
        Members(
            shmem.team_split_strided(shmem.TEAM_WORLD, *shape),
            range(shape[0], shape[0] + shape[1] * shape[2], shape[1]),
        )
        for shape in shapes
    ]
    if n_pes >= 3:
        listed = [1, n_pes - 1, 0]
        team = shmem.team_init(listed) if shmem.my_pe() in listed else shmem.TEAM_INVALID
        teams.append(Members(team, listed))
    return teams


def sizes_of(dtype):
    """Elements of messages that just fit a line, a box, and that are larger."""
    item = np.dtype(dtype).itemsize
    line, box = TEXT_BYTES // item, BOX_BYTES // item
    return [0, 1, line, line + 1, box, box + 1, 5000]


class Buffers:
    """Symmetric memory for one dtype, large enough for all cases."""

    def __init__(self, n_pes, dtype, largest):
        self.dtype, n = dtype, 3 * n_pes * largest + 100
        self.dst, self.src = shmem.empty(n, dtype), shmem.empty(n, dtype)

    def check(self, case, where, base, op, members, n, starts, in_place=False):
        """Make one call on this PE; `case` makes the data different from those before."""
        rank, n_team = members.pes.index(shmem.my_pe()), len(members.pes)
        dst_start, src_start = starts
        stride, step = (3, 2) if base == "alltoalls" else (1, 1)  # of src, of dst
        sources = [
            numbers_of(pe, self.dtype, case, source_size(base, n, k, n_team, stride))
            for k, pe in enumerate(members.pes)
        ]
        more = {"broadcast": [case % n_team], "alltoalls": [step, stride, n]}.get(base, [])
        result = RESULTS[base](rank, sources, *more, *([op] if op else []))

        nbytes = max(0, (result.size - 1) * step + 1)
        wanted = np.full(dst_start + nbytes + AROUND, poison(self.dtype))
        dst = self.dst[: wanted.size]
        mine = np.full(src_start + sources[rank].size + AROUND, poison(self.dtype))
        mine[src_start : src_start + sources[rank].size] = sources[rank]
        src = dst if in_place else self.src[: mine.size]
        dst.copy_from(wanted)
        src.copy_from(mine)
        if READY_FIRST:
            shmem.barrier(members.team)
        call(
            where, base, op, members.team, dst[dst_start : dst_start + nbytes],
            src[src_start : src_start + sources[rank].size], more,
        )  # fmt: skip
        if base == "broadcast" and pes.NODES > 1:
            shmem.barrier(members.team)  # the root's puts may be pending
        wanted[dst_start : dst_start + nbytes : step] = result
        names = (base, op, self.dtype, where, members, n, starts, in_place)
        got = dst.numpy()
        if READY_FIRST and op in ("sum", "prod") and is_real(got.dtype):  # in NVSHMEM's order
            exact, slack = wanted.astype(float), 32 * float(finfo(got.dtype).eps)
            near = np.isclose(got.astype(float), exact, slack, slack, equal_nan=True)
            wanted = np.where(near, got, wanted)
        assert alike(got, wanted), names
        assert in_place or alike(src.numpy(), mine), names


def may_be_in_place(members, n, dtype):
    """Not of several rounds: see `test_large_reductions_in_place`."""
    others = max(1, len(members.pes) - 1)
    return pes.BACKEND == "cpu" or n * np.dtype(dtype).itemsize <= SEGMENT // others


@pytest.mark.xfail(
    pes.BACKEND != "cpu",
    reason="perform_gpu_rdxn takes `op1 > op2 ? op1 : op2`, which is op2 if op1 is NaN",
    strict=True,
)
def test_nan_wins(run_pes):
    """Whichever PE has it."""
    compile_for("reduce", "max", "float64", THREAD)

    def body():
        shmem.init()
        me, n_pes = shmem.my_pe(), shmem.n_pes()
        dst, src = shmem.zeros(n_pes), shmem.ones(n_pes)
        src[me] = np.nan
        shmem.barrier_all()
        call(THREAD, "reduce", "max", shmem.TEAM_WORLD, dst, src, [])
        assert np.isnan(dst.numpy()).all(), dst.numpy()
        shmem.finalize()

    run_pes(body, 3)


def fits(members, n, dtype):
    """See `test_large_reductions_of_parts`."""
    nbytes = n * len(members.pes) * np.dtype(dtype).itemsize
    return pes.BACKEND == "cpu" or len(members.pes) == 1 or nbytes <= SCRATCH


@pytest.mark.xfail(
    pes.BACKEND != "cpu",
    reason="nvshmemi_reducescatter_allpush_threadgroup asserts that src has room in its memory",
    strict=pes.BACKEND != "nvshmem",  # passes on an H200 (NVSHMEM 3.8.0)
)
def test_large_reductions_of_parts(run_pes):
    compile_for("reducescatter", "max", "int32", BLOCK)

    def body():
        shmem.init()
        n = SCRATCH // 4
        dst, src = shmem.zeros(n, "int32"), shmem.full(2 * n, shmem.my_pe(), "int32")
        call(BLOCK, "reducescatter", "max", shmem.TEAM_WORLD, dst, src, [])
        assert np.all(dst.numpy() == 1)
        shmem.finalize()

    run_pes(body, 2)


@pytest.mark.xfail(
    pes.BACKEND != "cpu",
    reason="gpu_rdxn_segment_threadgroup sends what it has added up already, if dst is src",
    strict=True,
)
def test_large_reductions_in_place(run_pes):
    compile_for("reduce", "sum", "int64", BLOCK)

    def body():
        shmem.init()
        n = SEGMENT // 8
        x = shmem.full(n, 10 ** shmem.my_pe(), "int64")
        call(BLOCK, "reduce", "sum", shmem.TEAM_WORLD, x, x, [])
        assert np.all(x.numpy() == 111), np.unique(x.numpy())
        shmem.finalize()

    run_pes(body, 3)


@pytest.mark.parametrize("n_pes", PES)
@pytest.mark.parametrize("dtypes", ["some", pytest.param("all", marks=pytest.mark.sweep)])
@pytest.mark.parametrize(
    ("base", "op"),
    [
        pytest.param(
            *row, marks=[pytest.mark.sweep] * (row[0] == "reducescatter" and row[1] in FOLDED)
        )
        for row in ROWS
    ],
)
def test_all_dtypes_sizes_and_teams(run_pes, base, op, dtypes, n_pes):
    """Scopes, sizes, teams and places are combined so that each size meets every scope and team."""
    if op is None:
        # Copies see sizes only, in the same way: of all sizes, two see how they are divided.
        few = ["float8_e4m3fn", PAIR] if base in ("broadcast", "alltoalls") else []
        chosen = COPIED if dtypes == "all" else ["int64", *few]
        if pes.BACKEND != "cpu" and base == "alltoalls":  # NVSHMEM has no iput of odd widths
            chosen = [dtype for dtype in chosen if dtype is not PAIR]
    else:
        chosen = REDUCTIONS[op][1 if dtypes == "all" else 2]
        if dtypes == "some" and base == "reducescatter":  # folds as reduce does
            chosen = chosen[:1]
    if pes.BACKEND != "cpu":
        chosen = gpus.reduced(op, chosen)
    # Scopes divide the elements in the same way for all dtypes.
    scopes = dict.fromkeys(chosen, SCOPES if dtypes == "all" else (BLOCK,))
    scopes[chosen[0]] = SCOPES
    for dtype in chosen:
        compile_for(base, op, dtype, *scopes[dtype])
        for pe in range(n_pes):
            numbers(pe, dtype)

    def body():
        shmem.init()
        teams = teams_of(n_pes)
        late = np.random.default_rng(100 + shmem.my_pe())
        for dtype in chosen:
            buffers, case = Buffers(n_pes, dtype, 40001), 0
            for s, n in enumerate([*sizes_of(dtype), 40001]):
                for t, members in enumerate(teams[:1] if n == 40001 else teams):
                    case += 1
                    if shmem.my_pe() not in members.pes:
                        continue
                    if late.random() < 0.2:
                        time.sleep(late.random() / 1000)
                    starts = (3, 5) if case % 2 else (0, 0)
                    if base == "reducescatter" and not fits(members, n, dtype):
                        continue
                    one, other = (scopes[dtype][k % len(scopes[dtype])] for k in (s + t, s))
                    buffers.check(case, one, base, op, members, n, starts)
                    if base == "reduce" and may_be_in_place(members, n, dtype):
                        buffers.check(case, other, base, op, members, n, starts[:1] * 2, True)
            shmem.free(buffers.dst)
            shmem.free(buffers.src)
        shmem.finalize()

    run_pes(body, n_pes, timeout=170, heap_size=256 << 20)


@pytest.mark.parametrize("where", [HOST, STREAM])
def test_calls_of_the_host(run_pes, where):
    n_pes, dtype = 3, "float64"
    rows = [(base, op) for base, op in ROWS if op in (None, "sum", "max")]
    for base, op in rows:
        compile_for(base, op, dtype, *SCOPES, HOST)

    def body():
        shmem.init()
        teams, case = teams_of(n_pes), 0
        buffers = Buffers(n_pes, dtype, 5000)
        for base, op in rows:
            for n in sizes_of(dtype):
                for members in teams:
                    case += 1
                    if shmem.my_pe() in members.pes:
                        buffers.check(case, where, base, op, members, n, (3, 5))
                        # Others come to the next one from a kernel.
                        turn = where if case % n_pes == shmem.my_pe() else case % 3
                        buffers.check(case + 1, turn, base, op, members, n, (0, 1))
        shmem.finalize()

    run_pes(body, n_pes)


FLOATS = ["float16", "bfloat16", "float32", "float64", "complex64", "complex128"]


@pytest.mark.cpu_backend  # NVSHMEM adds in another order on each PE
@pytest.mark.parametrize(
    ("n_pes", "dtypes"),
    [
        (3, ["bfloat16", "complex64"]),
        (8, ["bfloat16"]),
        pytest.param(8, ["float64"], marks=pytest.mark.slow),
        *(pytest.param(n, FLOATS, marks=pytest.mark.sweep) for n in (2, 3, 8)),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else value,
)
def test_every_pe_gets_the_same_bits(run_pes, n_pes, dtypes):
    """Also where the order of additions matters, in each size's way of doing it."""
    for dtype in dtypes:
        compile_for("reduce", "sum", dtype, BLOCK)

    def body():
        shmem.init()
        rng, got = np.random.default_rng(shmem.my_pe()), []
        for dtype in dtypes:
            for n in sizes_of(dtype):
                values = (rng.normal(size=n) * 10.0 ** rng.integers(-3, 4, n)).astype(dtype)
                values[rng.random(n) < 0.01] = np.nan
                dst, src = shmem.empty(n, dtype), shmem.array(values)
                call(BLOCK, "reduce", "sum", shmem.TEAM_WORLD, dst, src, [])
                got.append(dst.numpy().tobytes())
        shmem.finalize()
        return got

    first, *others = run_pes(body, n_pes)
    assert all(other == first for other in others)


@pytest.mark.xfail(
    pes.BACKEND != "cpu",
    reason="nvshmemi_reducescatter_allpush_threadgroup reads the part of PE 2, and of those after "
    "it, when dst has been written",
    strict=True,
)
def test_parts_of_reducescatter_may_stay_in_place(run_pes):
    """`dst` may be the caller's own part of `src`: nobody else reads that part."""
    sizes, dtype, n_pes = [1, 49, 8193, 40_000], "int8", 3
    compile_for("reducescatter", "sum", dtype, BLOCK)

    def body():
        shmem.init()
        me = shmem.my_pe()
        for case in range(30):
            for n in sizes:
                sources = [numbers_of(pe, dtype, case, n * n_pes) for pe in range(n_pes)]
                src = shmem.array(sources[me])
                dst = src[me * n : (me + 1) * n]
                call(BLOCK, "reducescatter", "sum", shmem.TEAM_WORLD, dst, src, [])
                wanted = sources[me].copy()
                wanted[me * n : (me + 1) * n] = part(combined(sources, "sum"), me, n_pes)
                assert alike(src.numpy(), wanted), n
                shmem.free(src)
        shmem.finalize()

    run_pes(body, n_pes)


def test_arrays_of_several_dimensions(run_pes):
    @shmem.jit
    def exchange(dst, total, src):
        shmem.alltoall(shmem.TEAM_WORLD, dst, src)
        shmem.reduce(shmem.TEAM_WORLD, total, src, op="sum")

    plane = np.zeros((1, 1, 1))
    compile_first(exchange, plane, plane[0], plane[0])

    def body():
        shmem.init()
        me, n = shmem.my_pe(), shmem.n_pes()
        src = shmem.array(1000.0 * me + np.arange(n * 5).reshape(n, 5))
        dst, total = shmem.zeros((n, 5, 1)), shmem.zeros((n, 5))
        exchange[1, 1](dst, total, src)
        result = dst.numpy(), total.numpy()
        shmem.finalize()
        return result

    for pe, (got, total) in enumerate(run_pes(body, 3)):
        wanted = [1000 * sender + 5 * pe + np.arange(5) for sender in range(3)]
        np.testing.assert_array_equal(got[:, :, 0], wanted)
        np.testing.assert_array_equal(total, 3000 + 3 * np.arange(15).reshape(3, 5))


# --- many in a row

KINDS = 9
SIZES = (1, 5, 40, 1100)  # int64: in a line, in a box, not in a box


@shmem.jit(device=True)
def value(k, pe, i):
    return 1_000_000 * k + 10_000 * pe + i


@shmem.jit(device=True)
def errors(dst, n, k, first_pe, m, first):
    """Count what is not element `first`, ... of parts of `m` elements of PE `first_pe`, ..."""
    wrong = 0
    for i in range(n):
        if dst[i] != value(k, first_pe + i // m, first + i % m):
            wrong += 1
    return wrong + (dst[n] != -7)


@shmem.jit
def in_a_row(team, kinds, sizes, delays, dst, src, wrong):  # noqa: PLR0912
    me, n = shmem.team_my_pe(team), shmem.team_n_pes(team)
    for k in range(kinds.size):
        kind, m = kinds[k], sizes[k]
        for i in range(n * m):
            src[i] = value(k, me, i)
        for i in range(n * (m + n) + 1):
            dst[i] = -7
        for _ in range(delays[k]):
            cuda.atomic.add(wrong, KINDS, 1)
        bad = 0
        if kind == 0:
            shmem.broadcast(team, dst, src[:m], k % n)
            bad = errors(dst, m, k, k % n, m, 0)
        elif kind == 1:
            shmem.fcollect(team, dst, src[:m])
            bad = errors(dst, n * m, k, 0, m, 0)
        elif kind == 2:
            shmem.collect(team, dst, src[: m + me - n + 1] if m > n else src[:m])
            first = 0
            for pe in range(n):
                size = m + pe - n + 1 if m > n else m
                for i in range(size):
                    bad += dst[first + i] != value(k, pe, i)
                first += size
            bad += dst[first] != -7
        elif kind == 3:
            shmem.alltoall(team, dst, src[: n * m])
            bad = errors(dst, n * m, k, 0, m, me * m)
        elif kind == 4:
            shmem.alltoalls(team, dst, src, 1, 1, m)
            bad = errors(dst, n * m, k, 0, m, me * m)
        elif kind == 5:
            shmem.reduce(team, dst, src[:m], "max")
            bad = errors(dst, m, k, n - 1, m, 0)
        elif kind == 6:
            shmem.reduce(team, src[:m], src[:m], "min")
            for i in range(m):
                dst[i] = src[i]
            bad = errors(dst, m, k, 0, m, 0)
        elif kind == 7:
            shmem.reducescatter(team, dst, src[: n * m], "max")
            bad = errors(dst, m, k, n - 1, m, me * m)
        else:
            shmem.barrier(team)
        wrong[kind] += bad


@pytest.mark.backwards
@pytest.mark.parametrize("kinds", ["mixed", "broadcast", "without a barrier's wait"])
@pytest.mark.parametrize("n_pes", [3, 8, pytest.param(2, marks=pytest.mark.sweep)])
def test_many_in_a_row(run_pes, n_pes, kinds):
    """Whatever follows whatever, and whoever is late: data of one round is never in another."""
    rounds, ints = repeated(5000 if n_pes < 8 else 500, 100), np.zeros(1, np.int64)
    compile_first(in_a_row, shmem.TEAM_WORLD, ints, ints, ints, ints, ints, ints)
    among = {"mixed": range(KINDS), "broadcast": [0]}.get(kinds, [0, 0, 0, 1, 5, 7])

    def body():
        shmem.init()
        order = np.random.default_rng(n_pes)  # the same on every PE
        late = np.random.default_rng(100 + shmem.my_pe())
        of_kind = order.choice(list(among), rounds)
        sizes = order.choice(SIZES, rounds, p=(0.3, 0.3, 0.25, 0.15))
        delays = np.where(late.random(rounds) < 0.05, late.integers(0, 20_000, rounds), 0)
        n = n_pes * (max(SIZES) + n_pes) + 1
        dst, src = shmem.zeros(n, "int64"), shmem.zeros(n, "int64")
        wrong = shmem.to_device(np.zeros(KINDS + 1, np.int64))
        team = shmem.team_split_strided(shmem.TEAM_WORLD, n_pes - 1, -1, n_pes)
        in_a_row[1, 1](team, *map(shmem.to_device, (of_kind, sizes, delays)), dst, src, wrong)
        result = wrong.numpy()[:KINDS].tolist()
        shmem.finalize()
        return result

    assert run_pes(body, n_pes, timeout=120) == [[0] * KINDS] * n_pes


def test_more_pes_than_cores(run_pes):
    n_pes, rows = 16, [("reduce", "sum"), ("alltoall", None)]
    for base, op in rows:
        compile_for(base, op, "int64", BLOCK)

    def body():
        shmem.init()
        teams, buffers = teams_of(n_pes), Buffers(n_pes, "int64", 5000)
        for case, (base, op) in enumerate(rows * 2):
            for n in sizes_of("int64")[1::2]:
                for members in teams:
                    if shmem.my_pe() in members.pes:
                        buffers.check(case, BLOCK, base, op, members, n, (3, 5))
        shmem.finalize()

    run_pes(body, n_pes, timeout=150)


# --- several teams


@shmem.jit
def sums(teams, turns, delays, dst, src, wrong):
    """Block b adds up numbers on team b, and passes them on, again and again."""
    b = cuda.blockIdx.x
    team = teams[b]
    me, n = shmem.team_my_pe(team), shmem.team_n_pes(team)
    for k in range(turns):
        for i in range(src.shape[1]):
            src[b, i] = value(k, shmem.my_pe(), i)
        for _ in range(delays[b, k]):
            cuda.atomic.add(wrong, teams.size, 1)
        if READY_FIRST:
            shmem.sync(team)
        shmem.reduce(team, dst[b], src[b], "sum")
        for i in range(src.shape[1]):
            total = 0
            for rank in range(n):
                total += value(k, shmem.team_translate_pe(team, rank, shmem.TEAM_WORLD), i)
            wrong[b] += dst[b, i] != total
        if READY_FIRST:
            shmem.sync(team)
        shmem.broadcast(team, dst[b], src[b], k % n)
        root = shmem.team_translate_pe(team, k % n, shmem.TEAM_WORLD)
        for i in range(src.shape[1]):
            wrong[b] += dst[b, i] != value(k, root, i)
        wrong[b] += me != shmem.team_translate_pe(shmem.TEAM_WORLD, shmem.my_pe(), team)


TURNS = repeated(400, 20)


def row_and_column(n_pes, size):
    """A row and a column of the job's PEs, and what `sums` needs to work on both."""
    teams = shmem.team_split_2d(shmem.TEAM_WORLD, 2)
    late = np.random.default_rng(shmem.my_pe())
    delays = np.where(late.random((2, TURNS)) < 0.05, late.integers(0, 20_000, (2, TURNS)), 0)
    dst, src = shmem.zeros((2, size), "int64"), shmem.zeros((2, size), "int64")
    return teams, [shmem.to_device(delays), dst, src]


@pytest.fixture
def sums_compiled():
    table = np.zeros((1, 1), np.int64)
    compile_first(sums, table[0], 1, table, table, table, table[0])


@pytest.mark.parametrize("n_pes", [4, 6, pytest.param(7, marks=pytest.mark.sweep)])
@pytest.mark.parametrize("size", [3, 1500])
def test_two_blocks_each_on_a_team(run_pes, sums_compiled, n_pes, size):
    def body():
        shmem.init()
        teams, arrays = row_and_column(n_pes, size)
        wrong = np.zeros(3, np.int64)
        sums[2, 1](np.array(teams), TURNS, *arrays, wrong)
        shmem.finalize()
        return wrong[:2].tolist()

    assert run_pes(body, n_pes) == [[0, 0]] * n_pes


@pytest.mark.parametrize("n_pes", [4, 6])
def test_two_streams_each_on_a_team(run_pes, sums_compiled, n_pes):
    """The kernels come in another order on every second PE; none waits for the other."""

    def body():
        shmem.init()
        teams, (delays, dst, src) = row_and_column(n_pes, 700)
        wrong = [shmem.to_device(np.zeros(2, np.int64)) for _ in range(2)]
        streams = [shmem.stream(), shmem.stream()]
        numbers = [shmem.to_device(np.array([team])) for team in teams]
        for b in (0, 1) if shmem.my_pe() % 2 else (1, 0):
            arrays = [array[b : b + 1] for array in (delays, dst, src)]
            sums[1, 1, streams[b]](numbers[b], TURNS, *arrays, wrong[b])
        result = [int(count.numpy()[0]) for count in wrong]
        shmem.finalize()
        return result

    assert run_pes(body, n_pes) == [[0, 0]] * n_pes


@pytest.mark.parametrize("n_pes", [4, 6])
def test_rows_and_columns_in_turn(run_pes, n_pes):
    """The sum of the rows' sums, down the columns, is the sum of all."""
    turns = repeated(500, 20)

    @shmem.jit
    def grid_sum(row, column, x, wrong):
        n = shmem.n_pes()
        for k in range(1, turns):
            if cuda.threadIdx.x == 0:
                x[0] = k * (shmem.my_pe() + 1)
            cuda.syncwarp()
            for team in (row, column):
                if READY_FIRST:
                    shmem.sync_warp(team)
                shmem.reduce_warp(team, x, x, "sum")
            if x[0] != k * n * (n + 1) // 2:
                cuda.atomic.add(wrong, 0, 1)
            cuda.syncwarp()

    team, ints = shmem.TEAM_WORLD, np.zeros(1, np.int64)
    compile_first(grid_sum, team, team, ints, ints, threads=32)

    def body():
        shmem.init()
        wrong = np.zeros(1, np.int64)
        teams = shmem.team_split_2d(shmem.TEAM_WORLD, 2)
        grid_sum[1, 32](*teams, shmem.zeros(1, "int64"), wrong)
        shmem.finalize()
        return int(wrong[0])

    assert run_pes(body, n_pes) == [0] * n_pes


@pytest.mark.parametrize("n_pes", [3, pytest.param(2, marks=pytest.mark.sweep)])
def test_more_than_the_caches_keep(run_pes, n_pes):
    """Large enough for all to be copied past the caches; in place, and at an odd place."""
    n = (1 << 16 if pes.CALLED else 8 << 20) // n_pes * n_pes

    @shmem.jit
    def large(base, dst, src):
        if base == 0:
            shmem.reduce(shmem.TEAM_WORLD, src, src, "sum")
        elif base == 1:
            shmem.alltoall(shmem.TEAM_WORLD, dst, src)
        elif base == 2:
            shmem.fcollect(shmem.TEAM_WORLD, dst, src[: src.size // shmem.n_pes()])
        elif base == 3:
            shmem.broadcast(shmem.TEAM_WORLD, dst, src, 1)
        else:
            shmem.collect(shmem.TEAM_WORLD, dst, src[: src.size // shmem.n_pes()])

    def values(pe):
        return (1000 * pe + np.arange(n) % 89).astype("i4")

    def body():
        shmem.init()
        me = shmem.my_pe()
        parts = [values(pe).reshape(n_pes, -1) for pe in range(n_pes)]
        firsts = np.concatenate([part[0] for part in parts])
        wanted = [None, np.concatenate([part[me] for part in parts]), firsts, values(1), firsts]
        src, dst = shmem.zeros(n + 1, "i4")[1:], shmem.zeros(n + 3, "i4")[3:]
        for base in (1, 2, 3, 4, 0)[: 4 if READY_FIRST else 5]:  # NVSHMEM's sum cannot be in place
            src.copy_from(values(me))
            dst.copy_from(-1)
            shmem.barrier_all()  # `dst` may be written before this PE calls
            large[1, 1](base, dst, src)
            got = dst.numpy() if base else src.numpy()
            np.testing.assert_array_equal(
                got, wanted[base] if base else sum(map(values, range(n_pes)))
            )
            shmem.barrier_all()
        shmem.finalize()

    ints = np.zeros(1, "i4")
    compile_first(large, 0, ints, ints)
    run_pes(body, n_pes, heap_size=128 << 20)
