"""Collectives that cannot be done: what is said, in kernels and on the host."""

import re
import time

import numpy as np
import pytest
from numba.core.errors import TypingError

import gpushmem as shmem
from gpushmem import errors
from tests.conformance.test_collectives import (
    BLOCK,
    COPIES,
    HOST,
    STREAM,
    THREAD,
    WARP,
    call,
    compile_for,
)
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


def test_sizes_and_places_that_do_not_fit(run_pes):
    """In kernels and from the host alike; afterwards all goes on."""
    n_pes = 2
    rows = [(base, None) for base in COPIES] + [("reduce", "sum"), ("reducescatter", "sum")]
    for base, op in rows:
        compile_for(base, op, "float64", on_host=True)

    def body():
        shmem.init()
        x, y, world = shmem.zeros(8), shmem.zeros(8), shmem.TEAM_WORLD
        local = shmem.to_device(np.zeros(8))
        small = r"the target has {} elements, the source {}: "
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

    run_pes(n_pes, body)


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
    ("reduce(WORLD, x, x, k)", WHOLE + "int64"),
    ('reduce(WORLD, x, i, "sum")', f"reduce: {OTHER}, src of int64"),
    ("broadcast(WORLD, x, i)", f"broadcast: {OTHER}, src of int64"),
    ("fcollect(WORLD, x, i)", f"fcollect: {OTHER}, src of int64"),
    ("collect(WORLD, x, i)", f"collect: {OTHER}, src of int64"),
    ("alltoall(WORLD, x, i)", f"alltoall: {OTHER}, src of int64"),
    ("alltoalls(WORLD, x, i, 1, 1, 1)", f"alltoalls: {OTHER}, src of int64"),
    ("fcollect(WORLD, x, x[::2])", "fcollect: src is not contiguous"),
    ("collect(WORLD, x[::2], x)", "collect: dst is not contiguous"),
    ('reduce(WORLD, x, x[::2], "sum")', "reduce: src is not contiguous"),
    ("alltoall(WORLD, k, x)", "alltoall: dst must be an array, not int64"),
    ("broadcast(WORLD, x, k)", "broadcast: src must be an array, not int64"),
]


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
        exec(f"def kernel({', '.join(arrays)}):\n    shmem.{scoped}", scope)
        with pytest.raises(TypingError) as error:
            compile_first(shmem.jit(scope["kernel"]), *arrays.values())
        assert re.search(text, str(error.value)), (line, str(error.value))


def test_types_that_do_not_fit_are_refused_on_the_host(run_pes):
    def body():
        shmem.init()
        x, i, k = shmem.zeros(4), shmem.zeros(4, "int64"), 5
        z, b = shmem.zeros(4, complex), shmem.zeros(4, bool)
        r = shmem.zeros(4, [("v", "f4"), ("i", "i4"), ("j", "i4")])
        q = shmem.zeros(4, [("v", "f4", 2), ("i", "i4")])
        scope = {"WORLD": shmem.TEAM_WORLD, "x": x, "i": i, "k": k, "z": z, "b": b, "r": r, "q": q}
        for line, text in REFUSED:
            with pytest.raises(errors.ArgumentError, match=text):
                eval(f"shmem.{line}", {"shmem": shmem, **scope})
        shmem.finalize()

    run_pes(1, body)


# What PE 0 calls, what PE 1 calls, and how each call is named in the other's error.
DIFFERENT = [
    ("barrier(team)", "sync(team)", "barrier", "sync"),
    ("barrier_all()", "sync_all()", "barrier_all", "sync_all"),
    ("barrier(team)", "fcollect(team, y, x)", "barrier", "fcollect of 64 bytes"),
    ("collect(team, y, x)", "fcollect(team, y, x)", "collect", "fcollect of 64 bytes"),
    ("fcollect(team, y, x)", "fcollect(team, y, x[:7])", "fcollect of 64 bytes",
     "fcollect of 56 bytes"),
    ("fcollect(team, y, x)", "fcollect(team, y, y[:2000])", "fcollect of 64 bytes",
     "fcollect of 16000 bytes"),
    ("alltoall(team, y, x)", "alltoalls(team, y, x, 1, 1, 4)", "alltoall of 32 bytes",
     "alltoalls of 32 bytes"),
    ('reduce(team, y, x, "sum")', 'reduce(team, y, x, "max")', r"reduce\(sum\) of 64 bytes",
     r"reduce\(max\) of 64 bytes"),
    ('reduce(team, y, x, "sum")', 'reducescatter(team, y, x, "sum")', r"reduce\(sum\) of 64 bytes",
     r"reducescatter\(sum\) of 32 bytes"),
    ("broadcast(team, y, x, 1)", "broadcast(team, x, y[:7], 0)", "broadcast of 64 bytes",
     "broadcast of 56 bytes"),
    ('reduce(team, y[:3000], y[3000:6000], "sum")', "barrier(team)",
     r"reduce\(sum\) of 24000 bytes", "barrier"),
]  # fmt: skip


def test_different_calls(run_pes):
    """Both PEs get an error that names both calls; after it they can go on."""
    kernels = []
    for calls in DIFFERENT:
        kernels.append([])
        for line in calls[:2]:
            scope = {"shmem": shmem}
            exec(f"def kernel(team, x, y):\n    shmem.{line}", scope)
            kernels[-1].append(shmem.jit(scope["kernel"]))
            compile_first(kernels[-1][-1], 0, np.zeros(1), np.zeros(1))

    def body():
        shmem.init()
        me = shmem.my_pe()
        team = shmem.team_split_strided(shmem.TEAM_WORLD, 0, 1, 2)
        x, y = shmem.zeros(8), shmem.zeros(10_000)
        got = []
        for pair in kernels:
            got.append(said(lambda pair=pair: pair[me][1, 1](team, x, y)))
            shmem.barrier(team)
            shmem.barrier_all()
        shmem.finalize()
        return got

    zero, one = run_pes(2, body)
    for (_, _, first, second), at_zero, at_one in zip(DIFFERENT, zero, one, strict=True):
        met = f"{MISMATCH}: .*in kernel: PEs met in different collective calls: "
        assert re.search(rf"{met}PE 1: {second}; this PE: {first}", str(at_zero))
        assert re.search(rf"{met}PE 0: {first}; this PE: {second}", str(at_one))


def test_host_and_kernel_in_different_calls(run_pes):
    """PE 0 comes from a kernel, the others from the host."""

    @shmem.jit
    def kernel(x, y):
        shmem.fcollect_block(shmem.TEAM_WORLD, y, x)

    compile_first(kernel, np.zeros(1), np.zeros(1))

    def body():
        shmem.init()
        x, y = shmem.zeros(2), shmem.zeros(6)
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

    kernels, *hosts = run_pes(3, body)
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
    ("barrier_all", []), ("sync", [0]), ("fcollect", [0, "y", "x"]), ("collect", [0, "y", "x"]),
    ("alltoall", [0, "y", "x"]), ("alltoalls", [0, "y", "x", 1, 1, 1]),
    ("broadcast", [0, "y", "x", 1]), ("broadcast", [0, "y", "z", 1]), ("fcollect", [0, "y", "z"]),
    ("reduce", [0, "y", "x", "sum"]), ("reduce", [0, "y", "z", "sum"]),
]  # fmt: skip


@pytest.mark.parametrize("on_host", [False, True])
def test_a_pe_that_ends_is_named_to_those_who_wait_for_it(run_pes, on_host):
    kernels = []
    examples = {"x": np.zeros(1), "y": np.zeros(1), "z": np.zeros(1)}
    for base, arguments in GATHERING:
        words = [repr(a) if a == "sum" else str(a) for a in arguments]
        scope = {"shmem": shmem}
        exec(f"def kernel(x, y, z):\n    shmem.{base}({', '.join(words)})", scope)
        kernels.append(shmem.jit(scope["kernel"]))
        if on_host:
            if base not in ("barrier_all", "sync_all"):
                given = [examples.get(a, a) for a in arguments]
                compile_first(getattr(shmem, base), *given)
        else:
            compile_first(kernels[-1], *examples.values())

    def body():
        shmem.init()
        x, y, z = shmem.zeros(3), shmem.zeros(10_000), shmem.zeros(2000)
        if shmem.my_pe() == 1:
            return None
        given, got = {"x": x, "y": y, "z": z}, []
        for kernel, (base, arguments) in zip(kernels, GATHERING, strict=True):
            if on_host:
                got.append(said(getattr(shmem, base), *(given.get(a, a) for a in arguments)))
            else:
                got.append(said(lambda kernel=kernel: kernel[1, 1](x, y, z)))
        return got

    for pe, texts in enumerate(run_pes(3, body)):
        if pe == 1:
            continue
        for (base, _), text in zip(GATHERING, texts, strict=True):
            assert re.search(
                rf"{MISMATCH}: .*{base if on_host else 'in kernel'}:? waits for PE 1, which ended "
                "without making this call", text,
            ), (base, text)  # fmt: skip


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

    with pytest.raises(pytest.fail.Exception) as failure:
        run_pes(3, body, timeout=2)
    for pe in (0, 1):
        assert re.search(
            rf"PE {pe}: kernel waiting, block .*, test_collective_errors.py:\d+ in waiting: "
            rf"{base}.*, waits for PE 2, for [12]\.\d s", str(failure.value)
        )  # fmt: skip
