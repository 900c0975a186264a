"""The keys of kernels: equal for what is compiled to the same code, and only for that."""

import collections
import enum
import math
import operator
import os
import subprocess
import sys
import types
from pathlib import Path

import ml_dtypes
import numba
import numpy as np
import pytest
from numba import cuda
from numba.cuda import types as nb

import gpushmem as shmem
from gpushmem.artifacts import fingerprint as fingerprints
from gpushmem.simt.grid import kernel_cache
from gpushmem.start.launch import local

ARRAY = nb.Array(nb.float64, 1, "C")
Point, Place = (collections.namedtuple(name, "x y") for name in ("Point", "Place"))
Other = collections.namedtuple("Point", "x z")


class Colour(enum.Enum):
    RED, BLUE = 1, 2


class Level(enum.IntEnum):
    LOW, HIGH = 1, 2


def made(text, name="kernel", file="program.py", **known):
    """A function of this source, with these globals."""
    scope = {"__name__": "program", **known}
    exec(compile(text, file, "exec"), scope)
    return scope[name]


def fingerprint(function, args=(ARRAY,), **options):
    local.preload("cpu")  # it binds the names of gpushmem
    return fingerprints.fingerprint(function, args, options, kernel_cache.machine())


def key(text, *args, **known):
    """The key of a kernel of this source."""
    found = fingerprint(made(text, **known), *args)
    assert found is None or len(found) == 32
    return found


USES = "def kernel(a):\n    a[0] = VALUE"
BIG = np.arange(100_000.0)
CHANGED = BIG.copy()
CHANGED[50_000] += 1

# Values that a kernel may freeze, each compiled to something else than its neighbours.
VALUES = [
    0, 1, 1.0, True, False, None, 2**70, 0.0, -0.0, math.nan, math.inf, -math.inf, 1j, -1j, "a",
    b"a", (), (1, 2), (1, 3), ((1,), 2), (1, (2,)),
    Point(1, 2), Point(2, 1), Place(1, 2), Other(1, 2),
    Point, Place, Colour, Colour.RED, Colour.BLUE, Level.LOW, Level.HIGH,
    np.int32(1), np.int64(1), np.uint32(1), np.float32(1), np.float64(1), np.bool_(1),
    np.float32, np.int32, np.dtype("f4"), np.dtype("i4"), np.dtype(">i4"), np.dtype([("x", "i4")]),
    np.dtype([("y", "i4")]), np.dtype([("x", "i4"), ("y", "i4")]),
    ml_dtypes.float8_e4m3fn, np.dtype("float8_e4m3fn"), np.dtype("float8_e3m4"),
    np.zeros(2, "i4"), np.zeros(1, "i8"), np.zeros((2, 1), "i4"), np.ones(2, "i4"),
    np.eye(2), np.arange(4.0).reshape(2, 2), np.asfortranarray(np.arange(4.0).reshape(2, 2)),
    BIG, CHANGED,
    nb.float32, nb.int32, ARRAY, numba.from_dtype(np.dtype([("x", "i4")])),
    numba.from_dtype(np.dtype([("x", "f4")])),
    shmem.TEAM_WORLD, shmem.put, shmem.put_block, shmem.put_nbi, shmem,
    cuda.syncthreads, cuda.threadIdx, cuda.grid, cuda.gridsize, cuda.float32x4, cuda.float64x2,
    cuda, math, math.sin, math.cos, np, np.sin, np.cos, operator, operator.add,
    range, len, int, float,
    ValueError, KeyError,
]  # fmt: skip


def test_every_value_gives_another_key():
    keys = [key(USES, VALUE=value) for value in VALUES]
    assert [value for value, k in zip(VALUES, keys, strict=True) if k is None] == []
    same = [VALUES[k] for k, found in enumerate(keys) if keys.index(found) != k]
    assert same == []


def test_equal_values_give_the_same_key():
    for value in VALUES:
        again = value.copy() if isinstance(value, np.ndarray) and value.ndim == 1 else value
        assert key(USES, VALUE=value) == key(USES, VALUE=again), value


@pytest.mark.parametrize(
    "value",
    [
        object(), [1], {1: 2}, {1}, lambda: 1, bytearray(1), np.array([None]), Path("x"),
        type("Own", (), {}), type("Text", (str,), {})("a"), type("Real", (float,), {})(1.0),
        type("Number", (int,), {})(1), type("Both", (tuple,), {})((1,)), (1, [2]),
        np.ma.array([1]), np.frompyfunc(abs, 1, 1), made,
    ],
)  # fmt: skip
def test_what_is_not_known_has_no_key(value):
    assert key(USES, VALUE=value) is None
    assert key("def kernel(a):\n    a[0] = 1", VALUE=value) is not None


def test_own_members_of_an_enumeration_count():
    enums = [enum.Enum("E", {"A": 1, "B": last}) for last in (2, 3)]
    assert key(USES, VALUE=enums[0].A) != key(USES, VALUE=enums[1].A)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("def kernel(a): a[0] = 1", "def kernel(a): a[0] = 2"),
        ("def kernel(a): a[0] = 1", "def kernel(a): a[0] = 1.0"),
        ("def kernel(a): a[0] = 0.0", "def kernel(a): a[0] = -0.0"),
        ("def kernel(a): a[0] = 1", "def kernel(b): b[0] = 1"),
        ("def kernel(a): a[0] += 1", "def kernel(a): a[0] -= 1"),
        ("def kernel(a): a[0] = 1", "\ndef kernel(a): a[0] = 1"),
        ("def kernel(a): a[0] = 1", "def kernel(a):\n    a[0] = 1"),
        ("def kernel(a, b=1): a[0] = b", "def kernel(a, b=2): a[0] = b"),
        ("def kernel(a, *, b=1): a[0] = b", "def kernel(a, *, b=2): a[0] = b"),
        ("def kernel(a): a.x = 1", "def kernel(a): a.y = 1"),
        ("def kernel(a): a[0] = a[0] in {1, 2}", "def kernel(a): a[0] = a[0] in {1, 3}"),
        ("def kernel(a): f = lambda: 1; a[0] = f()", "def kernel(a): f = lambda: 2; a[0] = f()"),
        ("def kernel(a): a[0] = 1", "def f(a): a[0] = 1\nkernel = f"),
    ],
)
def test_other_sources_give_other_keys(one, other):
    assert key(one) == key(one) != key(other)


def test_the_file_the_types_and_the_options_count():
    function = made(USES, VALUE=1)
    keys = [
        fingerprint(function),
        fingerprint(function, (nb.Array(nb.float32, 1, "C"),)),
        fingerprint(function, (nb.Array(nb.float64, 2, "C"),)),
        fingerprint(function, (nb.Array(nb.float64, 1, "A"),)),
        fingerprint(function, (nb.Array(nb.float64, 1, "C", readonly=True),)),
        fingerprint(function, (nb.UniTuple(nb.int64, 2),)),
        fingerprint(function, (nb.NamedUniTuple(nb.int64, 2, Point),)),
        fingerprint(function, (nb.NamedUniTuple(nb.int64, 2, Place),)),
        fingerprint(function, fastmath=True),
        fingerprint(function, debug=True),
        *(fingerprint(function, fastmath=flags) for flags in ({"nsz"}, {"nsz": True}, {"nsz": 0})),
        fingerprint(made(USES, file="other.py", VALUE=1)),
    ]
    assert None not in keys
    assert len(set(keys)) == len(keys)


def test_folders_count_where_the_code_names_them():
    here, there = (made(USES, file=f"{folder}/program.py", VALUE=1) for folder in ("a", "b"))
    assert fingerprint(here) == fingerprint(there)
    assert fingerprint(here, debug=True) != fingerprint(there, debug=True)
    assert fingerprint(here, lineinfo=True) != fingerprint(there, lineinfo=True)


def test_settings_of_numba_count(monkeypatch):
    before = key(USES, VALUE=1)
    monkeypatch.setenv("NUMBA_OPT", "1")
    assert key(USES, VALUE=1) != before


CLOSURE = """
def make(n):
    def kernel(a):
        f = lambda: n + VALUE
        a[0] = f()
    return kernel
"""


def test_closures_count():
    make = made(CLOSURE, "make", VALUE=1)
    assert fingerprint(make(1)) == fingerprint(make(1)) != fingerprint(make(2))
    assert fingerprint(make([1])) is None
    assert fingerprint(make(1)) != fingerprint(made(CLOSURE, "make", VALUE=2)(1))


@pytest.mark.parametrize("decorate", [shmem.jit(device=True), cuda.jit(device=True)])
def test_globals_of_device_functions_count(decorate):
    def calling(text="def inner(x): return x + N", **known):
        inner = decorate(made(text, "inner", **known))
        middle = decorate(made("def middle(x): return inner(x)", "middle", inner=inner))
        return key("def kernel(a): a[0] = middle(a[0])", middle=middle)

    assert calling(N=1) == calling(N=1) != calling(N=2)
    assert calling(N=[1]) is None
    assert calling(N=1) != calling("def inner(x): return x - N", N=1)


def test_options_of_device_functions_count():
    def calling(**options):
        inner = cuda.jit(device=True, **options)(made("def inner(x): return x * x", "inner"))
        return key("def kernel(a): a[0] = inner(a[0])", inner=inner)

    assert calling() == calling() != calling(fastmath=True)


def test_functions_that_call_each_other_have_a_key():
    def calling(n):
        scope = {"__name__": "program", "jit": shmem.jit(device=True), "N": n}
        exec(
            "@jit\ndef even(x): return x == 0 or odd(x - N)\n"
            "@jit\ndef odd(x): return x != 0 and even(x - N)\n"
            "def kernel(a): a[0] = even(a[0])",
            scope,
        )
        return fingerprint(scope["kernel"])

    assert None is not calling(1) == calling(1) != calling(2)


def module(name, **attributes):
    made_module = types.ModuleType(name)
    vars(made_module).update(attributes)
    return made_module


def test_attributes_of_the_users_modules_count():
    def using(**attributes):
        return key("def kernel(a): a[0] = config.N", config=module("config", **attributes))

    assert using(N=1) == using(N=1, unused=[1]) != using(N=2)
    assert using(N=[1]) is None
    assert None is not using() != using(N=1)

    def within(n):
        whole = module("whole", part=module("part", N=n))
        whole.part.part = whole
        return key("def kernel(a): a[0] = whole.part.N", whole=whole)

    assert None is not within(1) == within(1) != within(2)


def test_kernels_of_gpushmem_are_read_as_the_users_are():
    def using(n):
        return key("def kernel(a): a[0] = mine.N", mine=module("gpushmem.kernels.mine", N=n))

    assert None is not using(1) != using(2)


PROGRAM = """
from tests.simt.test_fingerprint import *
print([(key(USES, VALUE=v) or b"").hex() for v in VALUES], key(SETS).hex())
"""
SETS = "def kernel(a): a[0] = a[0] in {'a', 'b', 'c', 'd'}"


def test_keys_are_the_same_in_every_process():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True,
        env=os.environ | {"PYTHONHASHSEED": "7"}, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    here = [(key(USES, VALUE=v) or b"").hex() for v in VALUES]
    assert done.stdout.strip() == f"{here} {key(SETS).hex()}"
