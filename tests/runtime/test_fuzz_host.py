"""Every public host function, called with arguments of all kinds: it works, or says what is wrong.

Nothing but errors of the package's tree may come of it: no other exception, no crash, no wait that
does not end, and nothing that stays allocated.
"""

import math
import operator
import random
import sys
import warnings
from contextlib import suppress
from decimal import Decimal

import numpy as np
import pytest
from gpushmem.kernels.plan import Plan
from numba.core.errors import NumbaError

import gpushmem as shmem
from gpushmem import kernels
from gpushmem.ops import OPS

pytestmark = pytest.mark.cpu_backend


class Raises:
    """An object that is what is asked for, until it is looked at."""

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        raise RuntimeError(name)

    def _raise(self, *_, **__):
        raise RuntimeError("looked at")

    __index__ = __array__ = __eq__ = __float__ = __len__ = __iter__ = __bool__ = _raise
    __hash__ = __repr__ = __call__ = __lt__ = __add__ = __contains__ = __getitem__ = _raise


def read_only(array):
    array.flags.writeable = False
    return array


def oddities():
    """Values of all kinds; few functions take any of them."""
    found = [
        None, True, 0, 1, 2, -1, 3, 1 << 31, 1 << 63, 1 << 64, 10**30, 10**5000, -(1 << 70), 0.0,
        1.5, -1.0, math.nan, math.inf, 1e300, 1j, Decimal(2), "", "abc", "sum", "and", "float32",
        "bfloat16", "O", "S3", ">f8", b"x", bytearray(8), memoryview(b"12345678"), [], [1, 2],
        [[1], [2, 3]], (), (1, 2), (2, 3, 4), (1,) * 40, (2, -1), (0, 1 << 63), {}, {"a": 1}, {1},
        range(3), slice(None), ..., object(), object, int, float, len, np, Raises(), Raises,
        shmem.Team(7), shmem.Team(-5), np.float32(1), np.int8(3), np.uint64(1 << 63),
        np.bool_(True), np.datetime64(5, "s"), np.str_("a"), np.array(3), np.array([1, 2, 3]),
        np.zeros(0), np.ones((2, 3)).T, np.arange(8.0)[::2], np.zeros(8), np.zeros(8, "int64"),
        np.zeros(8, "uint64"), read_only(np.zeros(8, "int64")), np.array([{}] * 8),
        np.array(["a"] * 8), np.zeros(8, "M8[s]"), np.zeros(8, ">i8"), np.zeros(8, "V5"),
        np.zeros(8, [("a", "i4"), ("b", "O")]), np.dtype("float32"), np.dtype("O"), np.ma.zeros(3),
    ]  # fmt: skip
    torch = sys.modules.get("torch")
    if torch is not None:
        found += [
            torch.zeros(8), torch.tensor(3), torch.zeros(2, requires_grad=True), torch.float32,
            torch.zeros(3, dtype=torch.bfloat16), torch.eye(2).to_sparse(), torch.quint8,
            torch.zeros(2, dtype=torch.complex64).conj(), torch.zeros(2, device="meta"),
        ]  # fmt: skip
    return found


class Pool:
    """What is right somewhere: by kind, made anew when a call took it away."""

    def __init__(self):
        self.buffer = np.zeros(8)
        self.makers = {
            "f8": lambda: shmem.zeros(8), "2d": lambda: shmem.zeros((2, 4)),
            "i8": lambda: shmem.zeros(8, "int64"), "u8": lambda: shmem.zeros(8, "uint64"),
            "record": lambda: shmem.zeros(4, [("value", "f4"), ("from", "i4")]),
            "none": lambda: shmem.zeros((0, 3)), "bf": lambda: shmem.zeros(3, "bfloat16"),
            "device": lambda: shmem.device_array(8), "registered": self.register,
        }  # fmt: skip
        self.arrays = {name: make() for name, make in self.makers.items()}
        freed, self.gone_team = shmem.zeros(4), shmem.team_split_strided(shmem.TEAM_WORLD, 0, 1, 1)
        self.gone = [freed, freed[1:]]
        shmem.free(freed)
        shmem.team_destroy(self.gone_team)
        self.stream = shmem.stream()
        self.plan = kernels.AllReduce(size=8, dtype="float64")
        self.oddities = oddities()

    def register(self):
        self.buffer = np.zeros(8)
        return shmem.register(self.buffer)

    def mend(self):
        for name, array in self.arrays.items():
            if array._lifetime is not None and array._lifetime.released_by:
                self.arrays[name] = self.makers[name]()

    def array(self, rng):
        whole = rng.choice([*self.arrays.values()])
        return rng.choice([whole, whole, whole, whole[:1], whole[1:], whole[::2], *self.gone])

    def any(self, rng):
        """Anything at all."""
        kinds = (
            self.oddities,
            self.oddities,
            [self.array(rng), self.gone_team, self.stream, self.plan],
        )
        return rng.choice(rng.choice(kinds))

    def right(self, rng, kind):
        """What a parameter of this kind may well take."""
        several = {
            "Symmetric": lambda: self.arrays[rng.choice(["f8", "2d", "i8", "u8"])],
            "Array": lambda: rng.choice([self.arrays["f8"], self.arrays["i8"], self.buffer,
                                         np.zeros(8, "int64")]),
            "Array | None": lambda: rng.choice([None, np.zeros(8, "int64")]),
            "Team": lambda: rng.choice([shmem.TEAM_WORLD, shmem.TEAM_NODE]),
            "str": lambda: rng.choice(["sum", "min", "xor"]),
            "dtype": lambda: rng.choice(["float64", "int32", np.uint8, bool]),
            "shape": lambda: rng.choice([3, (2, 3), 0, ()]),
            "shapes": lambda: [(2, 3)] * rng.choice([0, 1, 3]),
            "stream": lambda: rng.choice([None, self.stream, 0]),
            "array": lambda: self.array(rng),
        }  # fmt: skip
        return several.get(kind, lambda: rng.choice([0, 1, 1, 2]))()


# Functions that are not operations, by the kinds of their arguments.
FUNCTIONS = {
    "empty": ("shape", "dtype"), "zeros": ("shape", "dtype"), "ones": ("shape", "dtype"),
    "full": ("shape", "Scalar", "dtype"), "array": ("Array", "dtype"), "alloc_bytes": ("int",),
    "free": ("any",), "heap_stats": (), "device_array": ("shape", "dtype"), "to_device": ("Array",),
    "register": ("any",), "unregister": ("any",), "stream": ("any",), "set_timeout": ("any",),
    "synchronize": (), "is_initialized": (), "init": ("any", "any"),
    "session": ("any", "any"), "spawn": ("any", "any"), "jit": ("any",),
    "is_capturing": ("any",), "on_device": ("any",), "tuning": (), "wait_stream": ("any", "any"),
    "preload": ("any", "any", "any"), "init_module": ("any",), "register_symmetric": ("any",),
    "unregister_symmetric": ("any",), "qp_create": ("int",), "capture": ("any",),
    "trace_range": ("any",), "stats": (), "team_from": ("any",), "comm_from": ("Team",),
    "process_group_from": ("Team",), "on_stream": ("any", "any"),
}  # fmt: skip
LIKES = {"empty", "zeros", "ones", "full", "array"}
LEFT_OUT = {"finalize"}  # the test's own last call
BINARY = [
    operator.eq, operator.ne, operator.lt, operator.ge, operator.add, operator.mul, operator.iadd,
    operator.matmul, operator.pow, operator.and_, operator.contains, operator.getitem,
    lambda array, form: format(array, form if isinstance(form, str) else ""),
]  # fmt: skip
UNARY = [bool, str, repr, len, list, operator.neg, abs, np.sum, np.asarray]
METHODS = {"reshape": ("shape",), "view": ("dtype",), "copy_from": ("Array",), "numpy": ()}
# What plans are made with; what is not in `PLAN_KINDS` is a size.
PLANS = {
    kernels.AllReduce: "size dtype team", kernels.AllReduceRMSNorm: "tokens hidden dtype",
    kernels.AllGatherGemm: "m n k dtype", kernels.GemmReduceScatter: "m n k dtype team",
    kernels.GemmAllReduce: "m n k dtype", kernels.Jacobi: "shape grid dtype",
    kernels.HaloExchange: "shape width dtype axis team",
    kernels.AllToAllV: "rows row dtype team", kernels.SampleSort: "size dtype team",
    kernels.ZeroAdam: "size dtype team", kernels.PipelineExchange: "shape dtype team",
    kernels.ZeroMuon: "shapes dtype team",
    kernels.PipelinedLayers: "rows hidden layers microbatches dtype team",
    kernels.FFT: "shape dtype team", kernels.EmbeddingBags: "rows dim bags most dtype team",
    kernels.MoE: "tokens hidden inner experts top_k dtype team",
    kernels.ExpertParallel: "tokens hidden experts top_k dtype",
}  # fmt: skip
PLAN_KINDS = {
    "dtype": "dtype", "team": "Team", "shape": "shape", "grid": "shape", "row": "shape",
    "shapes": "shapes",
}  # fmt: skip
SHORT = [0, 1, 1000, -1, 1.5, "x", math.nan, [1], np.int8(3), np.array(3), Raises()]  # timeouts


@shmem.jit
def fill(x, value):
    x[0] = value


def launch(x, value):
    """What a kernel's code cannot take is Numba's to say."""
    with suppress(NumbaError):
        fill[1, 1].bind(x, value)()


def operation(rng, pool):
    """A call of a row of the operation table."""
    op = OPS[rng.choice([name for name, op in OPS.items() if op.host])]
    wrong = rng.choice(op.params or ("",))
    given = {
        name: pool.any(rng) if name == wrong or rng.random() < 0.2 else pool.right(rng, role.stub)
        for name, role in op.roles.items()
    }
    if "timeout_ns" in given:  # who waits for ever is not wrong, but not wanted here
        given["timeout_ns"] = rng.choice(SHORT)
    if rng.random() < 0.2:
        given["stream"] = pool.any(rng) if rng.random() < 0.5 else pool.stream
    if rng.random() < 0.05:
        given.pop(rng.choice([*given, "timeout_ns"]), None)
        if "timeout_ns" in op.roles:
            given["timeout_ns"] = 0
    return op.function, (), given


def function(rng, pool):
    name = rng.choice([*FUNCTIONS])
    given = [pool.any(rng) if rng.random() < 0.6 else pool.right(rng, k) for k in FUNCTIONS[name]]
    if rng.random() < 0.05:
        given.append(pool.any(rng))
    likes = name in LIKES and rng.random() < 0.3
    return getattr(shmem, name), tuple(given), {"like": pool.any(rng)} if likes else {}


def method(rng, pool):
    array, way = pool.array(rng), rng.random()
    if way < 0.3:
        return rng.choice(BINARY), (array, pool.any(rng)), {}
    if way < 0.4:
        return rng.choice(UNARY), (array,), {}
    if way < 0.6:
        return operator.setitem, (array, pool.any(rng), pool.any(rng)), {}
    name = rng.choice([*METHODS])
    given = [pool.any(rng) if rng.random() < 0.7 else pool.right(rng, k) for k in METHODS[name]]
    return getattr(array, name), tuple(given), {}


def other(rng, pool):
    """Kernels, plans, teams, streams, arrays of several PEs."""
    many = [pool.any(rng) for _ in range(4)]
    team = rng.choice([shmem.TEAM_WORLD, pool.gone_team, shmem.TEAM_INVALID])
    plan = rng.choice([*PLANS])
    kinds = {name: PLAN_KINDS.get(name, "int") for name in PLANS[plan].split()}
    sizes = {
        name: pool.any(rng) if rng.random() < 0.3 else pool.right(rng, kind)
        for name, kind in kinds.items()
    }
    return rng.choice([
        (lambda: fill[many[0], many[1]](pool.arrays["f8"], 1.0), (), {}),
        (lambda: fill[1, 1, many[0], many[1]](pool.arrays["f8"], 1.0), (), {}),
        (launch, tuple(many[:2]), {}), (fill, tuple(many[:2]), {}),
        (lambda: fill[many[0]], (), {}),
        (lambda: fill.configure(1, 1, cluster=many[0])(pool.arrays["f8"], 1.0), (), {}),
        (plan, (), sizes), (plan, tuple(sizes.values()), {}),
        (plan, (), sizes | {rng.choice(["blocks", "threads", "tile", "foo"]): many[0]}),
        (pool.plan, tuple(many[:rng.choice([0, 1, 2, 3])]), {}),
        (team.translate_pe, tuple(many[:2]), {}), (team.destroy, (), {}),
        (kernels.route, (many[0],), {"experts": many[1], "weights": many[2]}),
        (pool.stream.synchronize, (), {}),
        (lambda: shmem.multicast_array(pool.arrays["f8"], 0).copy_from(many[0]), (), {}),
    ])  # fmt: skip


def let_go(result):
    """Give back what a call made."""
    for made in result if isinstance(result, tuple) else (result,):
        if isinstance(made, shmem.Team) and made > 2:
            made.destroy()
        elif isinstance(made, Plan):
            made.free()


def attempt(rng, pool, call, args, kwargs):
    """Make a call; return what is wrong with how it ended."""
    before = shmem.heap_stats().used
    try:
        result = call(*args, **kwargs)
        shmem.synchronize()
    except shmem.ShmemError:
        result = None
    finally:
        shmem.set_timeout(None)
    known = [*pool.arrays.values(), *args, *kwargs.values()]
    if call in MAKERS and result is not None:  # an array of any library
        shmem.free(result)
    elif call is shmem.register and result is not None:
        shmem.unregister(result)
    elif not any(result is one for one in known):
        let_go(result)
    pool.mend()
    used = shmem.heap_stats().used
    return f"{used - before} bytes of the heap are left" if used != before else None


MAKERS = [
    getattr(shmem, name) for name in ("empty", "zeros", "ones", "full", "array", "alloc_bytes")
]


def described(call, args, kwargs):
    def one(value):
        try:
            return repr(value)[:60].replace("\n", " ")
        except Exception:
            return type(value).__name__

    name = getattr(call, "__qualname__", repr(call))
    given = [*map(one, args), *(f"{k}={one(v)}" for k, v in kwargs.items())]
    return f"{name}({', '.join(given)})"


def storm(seeds):
    """Make a call for each seed; return those that ended otherwise than they may."""
    warnings.simplefilter("ignore")
    shmem.init(heap_size="8M")
    pool, wrong = Pool(), []
    for seed in seeds:
        rng = random.Random(seed)
        make = rng.choices([operation, function, method, other], [5, 2, 2, 1])[0]
        call, args, kwargs = make(rng, pool)
        text = f"{seed}: {described(call, args, kwargs)}"
        print(text, flush=True)
        try:
            what = attempt(rng, pool, call, args, kwargs)
        except Exception as error:
            what = f"{type(error).__name__}: {str(error)[:200]}"
        if what is not None:
            wrong.append(f"{text}\n    {what}")
    shmem.finalize()
    return wrong


def test_every_public_function_is_called():
    called = {*FUNCTIONS, *LEFT_OUT} | {name for name, op in OPS.items() if op.host}
    functions = {n for n in shmem.__all__ if callable(getattr(shmem, n)) and n[0].islower()}
    in_kernels = {name for name, op in OPS.items() if not op.host}
    assert functions - in_kernels == called


def test_arguments_of_all_kinds(run_pes):
    wrong = run_pes(storm, 1, range(300), timeout=120)[0]
    assert not wrong, "\n".join(wrong)


@pytest.mark.sweep
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", range(0, 10_000, 1000))
def test_ten_thousand_calls(run_pes, first):
    pytest.importorskip("torch")
    wrong = run_pes(storm, 1, range(first, first + 1000), timeout=3000)[0]
    assert not wrong, "\n".join(wrong)
