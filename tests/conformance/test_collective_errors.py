"""Collectives that cannot be done: what is said, in kernels and on the host."""

import re
import sys
import time

import numpy as np
import pytest
from numba.core.errors import TypingError

import gpushmem as shmem
from gpushmem import errors
from tests.conformance.test_barriers import BARRIERS, meet_from_host, meet_once
from tests.conformance.test_collectives import (
    BLOCK,
    COPIES,
    HOST,
    SCOPES,
    STREAM,
    THREAD,
    WARP,
    call,
    compile_for,
)  # fmt: skip
from tests.pes import compile_first

ARGUMENT, SYMMETRY, MISMATCH = "ArgumentError", "SymmetryError", "CollectiveMismatch"


def said(function, *args):
    """The error that a call raises, with its class, as a text; or None."""
    try:
        function(*args)
        shmem.synchronize()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


@pytest.mark.checked
def test_sizes_and_places_that_do_not_fit(run_pes):
    """In kernels and from the host alike; afterwards all goes on."""
    n_pes = 2
    rows = [(base, None) for base in COPIES] + [("reduce", "sum"), ("reducescatter", "sum")]
    for base, op in rows:
        compile_for(base, op, "float64", *SCOPES, HOST)

    def body():
        shmem.init()
        x, y, world = shmem.zeros(8), shmem.zeros(8), shmem.TEAM_WORLD
        local = shmem.to_device(np.zeros(8))
        small = r"dst has {} elements, and needs {}"
        nowhere = "not on the symmetric heap"
        cases = [
            ("broadcast", x[:7], y, [0], ARGUMENT, small.format(7, 8)),
            ("broadcast", x, y, [2], ARGUMENT, "no PE 2 in the team .* PEs are 0 to 1"),
            ("broadcast", x, y, [-1], ARGUMENT, "no PE -1 in the team"),
            ("fcollect", x, y[:5], [], ARGUMENT, small.format(8, 10)),
            ("collect", x, y[:5], [], ARGUMENT, small.format(8, 10)),
            ("alltoall", x, y[:5], [], ARGUMENT, "src has 5 elements, .* 2 equal parts"),
            ("alltoall", x[:7], y, [], ARGUMENT, small.format(7, 8)),
            ("alltoalls", x, y, [1, 1, 5], ARGUMENT, "element 9 is outside of .* 8 elements"),
            ("alltoalls", x, y[:4], [2, 1, 2], ARGUMENT, None),
            ("alltoalls", x, y, [0, 1, 1], ARGUMENT, "strides must be 1 or more, not 0 and 1"),
            ("alltoalls", x, y, [1, 1, -1], ARGUMENT, "0 or more, not -2"),
            ("reduce", x[:3], y[:4], [], ARGUMENT, small.format(3, 4)),
            ("reducescatter", x, y[:7], [], ARGUMENT, "src has 7 elements, .* 2 equal parts"),
            ("reducescatter", x[:3], y, [], ARGUMENT, small.format(3, 4)),
        ]
        for base, _ in rows:
            more = {"broadcast": [0], "alltoalls": [1, 1, 2]}.get(base, [])
            cases += [
                (base, local, y[:4], more, SYMMETRY, nowhere),
                (base, x, local[:4], more, SYMMETRY, nowhere),
            ]
        ops = dict(rows)
        for base, dst, src, more, kind, text in cases:
            for where in (THREAD, WARP, BLOCK, HOST, STREAM):
                got = said(call, where, base, ops[base], world, dst, src, more)
                if text is None:  # it fits exactly
                    assert got is None
                    continue
                assert got is not None, (base, where, text)
                assert re.search(f"{kind}: .*{base}.*{text}", got), (got, text)
        shmem.finalize()

    run_pes(body, n_pes)


WHOLE, OTHER = (
    "op must be one of 'sum', .*, written in the call, not ",
    "dst is an array of float64",
)
REFUSED = [
    ('reduce(WORLD, x, x, "and")', 'reduce: "and" is of integers, not of float64'),
    ('reduce(WORLD, z, z, "max")', 'reduce: "max" is of integers or floats, not of complex128'),
    ('reduce(WORLD, x, x, "maxloc")', '"maxloc" is of records of two .*, not of float64'),
    ('reduce(WORLD, r, r, "maxloc")', '"maxloc" is of records of two .*, not of .*Record'),
    ('reduce(WORLD, q, q, "maxloc")', '"maxloc" is of records of two .*, not of .*Record'),
    ('reduce(WORLD, q, q, "sum")', '"sum" is of numbers, not of .*Record'),
    ('reducescatter(WORLD, b, b, "or")', 'reducescatter: "or" is of integers, not of bool'),
    ('reduce(WORLD, x, x, "average")', WHOLE + ".*average"),
    ("reduce(WORLD, x, x, k)", WHOLE + "int64$"),
    ('reduce(WORLD, x, i, "sum")', f"reduce: {OTHER}, src of int64"),
    ("broadcast(WORLD, x, i)", f"broadcast: {OTHER}, src of int64"),
    ("fcollect(WORLD, x, i)", f"fcollect: {OTHER}, src of int64"),
    ("collect(WORLD, x, i)", f"collect: {OTHER}, src of int64"),
    ("alltoall(WORLD, x, i)", f"alltoall: {OTHER}, src of int64"),
    ("alltoalls(WORLD, x, i, 1, 1, 1)", f"alltoalls: {OTHER}, src of int64"),
    ("fcollect(WORLD, x, x[::2])", "fcollect: src is not contiguous"),
    ("collect(WORLD, x[::2], x)", "collect: dst is not contiguous"),
    ('reduce(WORLD, x, x[::2], "sum")', "reduce: src is not contiguous"),
    ("alltoall(WORLD, k, x)", "alltoall: dst must be an array, not int64$"),
    ("broadcast(WORLD, x, k)", "broadcast: src must be an array, not int64$"),
]


@pytest.mark.cpu_backend
@pytest.mark.parametrize("suffix", ["", "_block"])
def test_types_that_do_not_fit_are_refused_when_the_kernel_is_compiled(suffix):
    arrays = {
        "x": np.zeros(4), "z": np.zeros(4, complex), "i": np.zeros(4, int), "b": np.zeros(4, bool),
        "r": np.zeros(4, [("v", "f4"), ("i", "i4"), ("j", "i4")]),
        "q": np.zeros(4, [("v", "f4", 2), ("i", "i4")]), "k": 5,
    }  # fmt: skip
    for line, text in REFUSED:
        scope = {"shmem": shmem, "WORLD": shmem.TEAM_WORLD}
        scoped = line.replace("(", suffix + "(", 1)
        named = line.partition("(")[0] + ":"
        said = text.replace(named, named.replace(":", suffix + ":"))
        said = said.replace(
            "an array, not int64$", "an array, not int64; of an element, a.i., give"
        )
        exec(f"def kernel({', '.join(arrays)}):\n    shmem.{scoped}", scope)
        with pytest.raises(TypingError) as error:
            compile_first(shmem.jit(scope["kernel"]), *arrays.values())
        shown = str(error.value)
        assert re.search(said, shown, re.MULTILINE), (line, shown)


def test_types_that_do_not_fit_are_refused_on_the_host(run_pes):
    def body():
        shmem.init()
        x, i, k = shmem.zeros(4), shmem.zeros(4, "int64"), 5
        z, b = shmem.zeros(4, complex), shmem.zeros(4, bool)
        r = shmem.zeros(4, [("v", "f4"), ("i", "i4"), ("j", "i4")])
        q = shmem.zeros(4, [("v", "f4", 2), ("i", "i4")])
        scope = {"WORLD": shmem.TEAM_WORLD, "x": x, "i": i, "k": k, "z": z, "b": b, "r": r, "q": q}
        for line, text in REFUSED:
            on_host = text.replace(", written in the call", "").replace("int64$", "5")
            with pytest.raises(errors.ArgumentError, match=on_host):
                eval(f"shmem.{line}", {"shmem": shmem, **scope})
        shmem.finalize()

    run_pes(body, 1)


# --- who is in which call


def parsed(name):
    """What a call is and how many bytes each PE gives, from what errors call it."""
    base, op, nbytes = re.fullmatch(r"(\w+)(?:\((\w+)\))?(?: of (\d+) bytes)?", name).groups()
    return base, op, int(nbytes or 24)


def compile_named(name, where):
    base, op, _ = parsed(name)
    if base not in BARRIERS:
        compile_for(base, op, "int64", where)
    elif where == THREAD:
        compile_first(meet_once, 0, shmem.TEAM_WORLD)
    elif base in ("barrier", "sync"):
        compile_first(getattr(shmem, base), 0)


def named(name, where, team, dst, src):
    """Make the call of this name; a broadcast waits for another PE."""
    base, op, nbytes = parsed(name)
    n, me = nbytes // 8, shmem.my_pe()
    if base in BARRIERS and where == HOST:
        meet_from_host(BARRIERS.index(base), team)
    elif base in BARRIERS:
        meet_once[1, 1](BARRIERS.index(base), team)
    else:
        more = {"broadcast": [0 if me == 1 else 1], "alltoalls": [1, 1, n]}.get(base, [])
        parts = team.n_pes if base in ("alltoall", "alltoalls", "reducescatter") else 1
        call(where, base, op, team, dst, src[: n * parts], more)


# What PE 0 calls, and what PE 1 calls.
DIFFERENT = [
    ("barrier", "sync"),
    ("barrier_all", "sync_all"),
    ("barrier", "fcollect of 64 bytes"),
    ("collect", "fcollect of 64 bytes"),
    ("fcollect of 64 bytes", "fcollect of 56 bytes"),
    ("fcollect of 64 bytes", "fcollect of 16000 bytes"),
    ("alltoall of 32 bytes", "alltoalls of 32 bytes"),
    ("reduce(sum) of 64 bytes", "reduce(max) of 64 bytes"),
    ("reduce(sum) of 64 bytes", "reducescatter(sum) of 32 bytes"),
    ("broadcast of 64 bytes", "broadcast of 56 bytes"),
    ("reduce(sum) of 24000 bytes", "barrier"),
]


@pytest.mark.checked
@pytest.mark.parametrize("where", [THREAD, HOST])
def test_different_calls(run_pes, where):
    """Both PEs get an error that names both calls; after it they can go on."""
    pairs = [pair for pair in DIFFERENT if where == THREAD or {*pair}.isdisjoint(BARRIERS)]
    for pair in pairs:
        for name in pair:
            compile_named(name, where)
    compile_first(shmem.barrier, 0)

    def body():
        shmem.init()
        team = shmem.team_split_strided(shmem.TEAM_WORLD, 0, 1, 2)
        x, y, got = shmem.zeros(10_000, int), shmem.zeros(10_000, int), []
        for pair in pairs:
            got.append(said(named, pair[shmem.my_pe()], where, team, y, x))
            shmem.barrier(team)
            shmem.barrier_all()
        shmem.finalize()
        return got

    zero, one = run_pes(body, 2)
    for (first, second), at_zero, at_one in zip(pairs, zero, one, strict=True):
        met = ": PEs met in different collective calls: "
        roots = (" from 1", " from 0") if first.startswith("broadcast") else ("", "")
        calls = [call + root for call, root in zip((first, second), roots, strict=True)]
        assert f"{met}PE 1: {calls[1]}; this PE: {calls[0]}. Every PE" in str(at_zero)
        assert f"{met}PE 0: {calls[0]}; this PE: {calls[1]}. Every PE" in str(at_one)
        assert at_zero.startswith(MISMATCH)
        assert at_one.startswith(MISMATCH)


@pytest.mark.checked
def test_host_and_kernel_in_different_calls(run_pes):
    """PE 0 comes from a kernel, the others from the host."""

    @shmem.jit
    def kernel(x, y):
        shmem.fcollect_block(shmem.TEAM_WORLD, y, x)

    compile_first(kernel, np.zeros(1, int), np.zeros(1, int), threads=32)

    def body():
        shmem.init()
        x, y = shmem.zeros(2, int), shmem.zeros(6, int)
        calls = [
            shmem.barrier_all,
            lambda: shmem.zeros(8),
            lambda: shmem.team_split_strided(shmem.TEAM_WORLD, 0, 1, 3),
            lambda: shmem.reduce(shmem.TEAM_WORLD, x, x, "sum"),
        ]
        if shmem.my_pe() == 0:
            calls = [lambda: kernel[1, 32](x, y)] * len(calls)
        got = [said(function) for function in calls]
        shmem.finalize()
        return got

    kernels, *hosts = run_pes(body, 3)
    names = ["barrier_all", "host", "host", r"reduce\(sum\) of 16 bytes"]
    for text, name in zip(kernels, names, strict=True):
        assert re.search(rf"{MISMATCH}.*PE 1: {name}; this PE: fcollect of 16 bytes", text)
    names = ["barrier_all", "zeros of 64 bytes", r"team_split_strided\(0, 0, 1, 3\)"]
    for texts in hosts:
        for text, name in zip(texts, names, strict=False):
            assert re.search(
                rf"{MISMATCH}.*PE 0: fcollect of 16 bytes; PE 1: {name}; PE 2: {name}", text
            )
        assert re.search(
            rf"{MISMATCH}.*PE 0: fcollect of 16 bytes; this PE: reduce\(sum\) of 16", texts[3]
        )


GATHERING = [
    "barrier_all", "sync", "collect", "fcollect of 24 bytes", "fcollect of 16000 bytes",
    "alltoall of 24 bytes", "alltoalls of 24 bytes", "broadcast of 24 bytes",
    "broadcast of 16000 bytes", "reduce(sum) of 24 bytes", "reduce(sum) of 16000 bytes",
]  # fmt: skip


@pytest.mark.reports
@pytest.mark.parametrize("where", [THREAD, HOST])
def test_a_pe_that_ends_is_named_to_those_who_wait_for_it(run_pes, where):
    for name in GATHERING:
        compile_named(name, where)

    def body():
        shmem.init()
        x, y = shmem.zeros(10_000, int), shmem.zeros(10_000, int)
        if shmem.my_pe() == 1:
            return None
        return [said(named, name, where, shmem.TEAM_WORLD, y, x) for name in GATHERING]

    zero, _, two = run_pes(body, 3)
    for texts in (zero, two):
        for name, text in zip(GATHERING, texts, strict=True):
            assert re.search(
                rf"{MISMATCH}: .* waits for PE 1, which ended without making this call", str(text)
            ), (name, text)
            assert where == THREAD or parsed(name)[0] in text


@pytest.mark.reports
@pytest.mark.parametrize("base", ["barrier", "reduce"])
def test_a_report_says_for_whom_a_kernel_waits(run_pes, base):
    @shmem.jit
    def waiting(x):
        if base == "barrier":
            shmem.barrier_all_block()
        else:
            shmem.reduce(shmem.TEAM_WORLD, x, x, "sum")

    compile_first(waiting, np.zeros(1))

    def body():
        shmem.init()
        x = shmem.zeros(1)
        if shmem.my_pe() == 2:
            time.sleep(100)
        waiting[1, 1](x)
        shmem.synchronize()

    with pytest.raises(shmem.ShmemError) as failure:
        run_pes(body, 3, timeout=2)
    assert re.search(
        rf"PEs 0, 1: kernel waiting, block .*, test_collective_errors.py:\d+ in waiting, "
        rf"for \d\.\d s\n +{base}.* waits for PE 2\n", str(failure.value)
    )  # fmt: skip


@shmem.jit
def spread(dst, src, root):
    shmem.broadcast(shmem.TEAM_WORLD, dst, src, root)
    shmem.barrier_all()


@pytest.mark.checked
@pytest.mark.parametrize("size", [4, 5000])
def test_different_roots(run_pes, size):
    """Small ones are noticed by the next call at the latest, large ones by their own."""

    def body():
        shmem.init()
        dst, src = shmem.zeros(size, "int64"), shmem.zeros(size, "int64")
        spread[1, 1](dst, src, shmem.my_pe() % 2)
        with pytest.raises(errors.CollectiveMismatch) as failure:
            shmem.synchronize()
        assert f"of {8 * size} bytes from 0" in str(failure.value)
        assert f"of {8 * size} bytes from 1" in str(failure.value)

    compile_first(spread, np.zeros(1, "int64"), np.zeros(1, "int64"), 0)
    run_pes(body, 2)


# --- one call, with arguments that differ


@shmem.jit
def copies(which, a, b, k):
    if which == 0:
        shmem.broadcast(shmem.TEAM_WORLD, a, b, k)
    elif which == 1:
        shmem.fcollect(shmem.TEAM_WORLD, a, b)
    else:
        shmem.alltoalls(shmem.TEAM_WORLD, a, b, 1 + k, 1, 1)


@shmem.jit
def the_rest(which, a, b, k):
    if which == 0:
        shmem.collect(shmem.TEAM_WORLD, a, b)
    elif which == 1:
        shmem.alltoall(shmem.TEAM_WORLD, a, b)
    elif which == 2:
        shmem.reduce(shmem.TEAM_WORLD, a, b, "sum")
    else:
        shmem.reducescatter(shmem.TEAM_WORLD, a, b, "min")


# The call, how PE 1 makes it differently, and what the calls of PE 1 and the others are named.
UNLIKE = {
    copies: [
        (0, "root", "broadcast of 48 bytes from 1", "broadcast of 48 bytes from 0"),
        (0, "dtype", "broadcast of 48 bytes of int64 from 0", "48 bytes of float64 from 0"),
        (0, "src", "", ""),
        (1, "dtype", "fcollect of 48 bytes of int64", "fcollect of 48 bytes of float64"),
        (1, "dst", "", ""),
        (2, "dtype", "of 8 bytes of int64 with strides 1 and 1", "float64 with strides 1 and 1"),
        (2, "root", "alltoalls of 8 bytes with strides 2 and 1", "8 bytes with strides 1 and 1"),
    ],
    the_rest: [
        (0, "dtype", "collect of int64", "collect of float64"),
        (1, "dtype", "alltoall of 16 bytes of int64", "alltoall of 16 bytes of float64"),
        (2, "dtype", "reduce(sum) of 48 bytes of int64", "reduce(sum) of 48 bytes of float64"),
        (2, "src", "", ""),
        (3, "dtype", "reducescatter(min) of 16 bytes of int64", "of 16 bytes of float64"),
    ],
}


@pytest.mark.checked
@pytest.mark.parametrize("kernel", [copies, pytest.param(the_rest, marks=pytest.mark.sweep)])
def test_arguments_that_differ(run_pes, kernel):
    """All PEs get an error that says who gives what; where nobody waits, in the next call."""

    def body():
        shmem.init()
        x, y, odd = shmem.zeros(24), shmem.zeros(12), shmem.my_pe() == 1
        got = []
        for which, what, *_ in UNLIKE[kernel]:
            unlike = {what: 1} if odd else {}
            a, b = (x.view("int64"), y.view("int64")) if "dtype" in unlike else (x, y)
            a, b = a[unlike.get("dst", 0) :], b[unlike.get("src", 0) :][:6]
            text = said(lambda: kernel[1, 1](which, a, b, unlike.get("root", 0)))  # noqa: B023
            got.append(text or said(shmem.barrier_all))
        shmem.barrier_all()
        shmem.finalize()
        return got

    for dtype in (float, int):
        compile_first(kernel, 0, np.zeros(1, dtype), np.zeros(1, dtype), 0)
    results = run_pes(body, 3)
    for k, (_, what, odd, others) in enumerate(UNLIKE[kernel]):
        for pe, texts in enumerate(results):
            text, other = str(texts[k]), "PE 1" if pe != 1 else "PE [02]"
            theirs, ours = (odd, others) if pe != 1 else (others, odd)
            pattern = rf"{other}: .*{re.escape(theirs)}; this PE: .*{re.escape(ours)}\. Every"
            if what in ("dst", "src"):
                pattern = rf"{other} gives {what} at offset 0x\w+ of"
            assert text.startswith(MISMATCH), (k, pe, text)
            assert re.search(pattern, text), (k, pe, text)


@pytest.mark.checked
def test_dtypes_that_differ_on_hosts(run_pes):
    """One calls from a kernel, one from the host, one on a stream."""
    for dtype in (float, int):
        compile_for("reduce", "sum", dtype, THREAD, HOST)

    def body():
        shmem.init()
        me, x, y = shmem.my_pe(), shmem.zeros(2), shmem.zeros(2)
        if me == 1:
            x, y = x.view("int64"), y.view("int64")
        where = (THREAD, HOST, STREAM)[me]
        text = said(call, where, "reduce", "sum", shmem.TEAM_WORLD, x, y, [])
        shmem.finalize()
        return text

    for pe, text in enumerate(run_pes(body, 3)):
        ours, theirs = ("float64", "int64") if pe != 1 else ("int64", "float64")
        assert re.search(rf"\(sum\) of 16 bytes of {theirs}; this PE: .* of {ours}", text), text


@shmem.jit
def only_spread(dst, src, root):
    shmem.broadcast(shmem.TEAM_NODE, dst, src, root)


LAST = {"finalize": shmem.finalize, "sys.exit(0)": sys.exit, "nothing": int}


@pytest.mark.checked
@pytest.mark.parametrize("end", LAST)
def test_a_broadcast_that_differs_and_is_the_last_call(run_pes, end):
    """Its root waits for nobody; the end of the script does. The job does not end well."""
    compile_first(only_spread, np.zeros(1, int), np.zeros(1, int), 0)

    def body():
        shmem.init()
        x, y = shmem.zeros(1, int), shmem.zeros(1, int)
        only_spread[1, 1](x, y, shmem.my_pe() % 2)
        LAST[end]()

    with pytest.raises(
        shmem.PeerFailed, match=r"CollectiveMismatch: .*of 8 bytes from \d; this PE"
    ):
        run_pes(body, 3)


@pytest.mark.checked
def test_a_broadcast_that_not_all_call(run_pes):
    """The root, which waits for nobody, hears of it when it ends."""
    compile_first(only_spread, np.zeros(1, int), np.zeros(1, int), 0)

    def body():
        shmem.init()
        x, y = shmem.zeros(1, int), shmem.zeros(1, int)
        if shmem.my_pe() == 1:
            only_spread[1, 1](x, y, 1)

    with pytest.raises(shmem.ShmemError, match=r"waits for PEs? .* without making this"):
        run_pes(body, 3)


@pytest.mark.checked
def test_many_broadcasts_from_changing_roots(run_pes):
    """More PEs than cores, most rounds without a wait for all of them: no false alarm."""
    compile_first(only_spread, np.zeros(1, int), np.zeros(1, int), 0)

    def body():
        shmem.init()
        x, y, n = shmem.zeros(1, int), shmem.zeros(1, int), shmem.n_pes()
        wrong = 0
        y[:] = shmem.my_pe()
        for k in range(300):
            root = k * k % n
            only_spread[1, 1](x, y, root)
            shmem.synchronize()
            wrong += int(x[0]) != root
        return wrong

    assert run_pes(body, 7) == [0] * 7


@shmem.jit
def move_elsewhere(which, a, b):
    if which == 0:
        shmem.reduce(shmem.TEAM_WORLD, a, b, "sum")
    elif which == 1:
        shmem.alltoall(shmem.TEAM_WORLD, a, b)
    elif which == 2:
        shmem.collect(shmem.TEAM_WORLD, a, b[:10])
    else:
        shmem.broadcast(shmem.TEAM_WORLD, a, b)


@pytest.mark.checked
@pytest.mark.parametrize("which", range(4))
def test_arrays_at_different_places(run_pes, which):
    """Nothing is written where another PE's array is not."""

    def body():
        shmem.init()
        a, b, c = (shmem.full(20000, 7, dtype="int64") for _ in range(3))
        move_elsewhere[1, 1](which, (a, b)[shmem.my_pe()], c)
        message = r"gives dst at offset 0x\w+ of the symmetric heap, this PE at 0x"
        with pytest.raises(errors.CollectiveMismatch, match=message):
            shmem.synchronize()
        return [bool((x.numpy() == 7).all()) for x in (a, b, c)]

    compile_first(move_elsewhere, 0, np.zeros(1, "int64"), np.zeros(1, "int64"))
    assert run_pes(body, 2) == [[True] * 3] * 2
