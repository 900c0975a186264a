"""The null backend: it does what the contract says, and on the host what the cpu backend does."""

import inspect
import re
import subprocess
import sys

import numpy as np
import pytest

import gpushmem as shmem
from gpushmem.backends.base import Backend
from gpushmem.backends.null.backend import NullBackend
from gpushmem.backends.null.operations import OPERATIONS
from gpushmem.ops import OPS
from tests.conftest import PLAIN
from tests.memory import test_interop, test_operators, test_registration, test_stats
from tests.runtime import test_arguments, test_runtime

HOST = {op.base: op for op in OPS.values() if op.host}


@pytest.fixture(autouse=True)
def null(monkeypatch):
    monkeypatch.setenv("GPUSHMEM_BACKEND", "null")
    yield
    if shmem.is_initialized():
        shmem.finalize()


# --- tests of what every backend does, on one PE and without kernels, run on this one, too

KERNELS = re.compile(r"jit|GPUSHMEM_BACKEND|AllReduce|negate|send\[|which the .* backend")


def without_kernels(*modules):
    """The modules' tests that one PE is enough for, and that launch nothing."""
    return {
        name: test
        for module in modules
        for name, test in vars(module).items()
        if name.startswith("test_") and inspect.isfunction(test)
        if "alone" in inspect.signature(test).parameters
        if not KERNELS.search(inspect.getsource(test))
    }


globals().update(
    without_kernels(
        test_arguments, test_interop, test_operators, test_registration, test_runtime, test_stats
    )
)


# --- the contract


def test_it_has_what_the_contract_asks_for_and_no_more():
    def methods(cls):
        functions = {k: f for k, f in vars(cls).items() if inspect.isfunction(f)}
        return {
            name: list(inspect.signature(function).parameters)
            for name, function in functions.items()
            if not name.startswith("_")
        }

    assert methods(NullBackend) == methods(Backend)
    shmem.init()
    backend = shmem.zeros(1)._backend
    assert set(Backend.__annotations__) <= set(dir(backend))
    shmem.finalize()


def test_each_row_that_the_host_calls_has_an_operation():
    assert set(OPERATIONS) == set(HOST)


def test_kernels_say_what_to_use_instead():
    @shmem.jit
    def fill(x):
        x[0] = 1

    shmem.init()
    for launch in (fill[1, 1], fill[1, 1].bind):
        with pytest.raises(shmem.ShmemError, match="kernel fill: the null backend runs no kernels"):
            launch(shmem.zeros(1))
    with pytest.raises(shmem.ShmemError, match="capture: the null backend queues nothing"):
        shmem.capture(shmem.stream())
    shmem.finalize()


def test_it_is_never_taken_unasked_and_has_one_pe(run_cli, tmp_path):
    code = (
        "import sys, gpushmem as shmem; shmem.init(); print(shmem.n_pes(), "
        "shmem.ones(3).numpy().sum(), shmem.tuning().blocks, 'llvmlite.binding' in sys.modules)"
    )
    env = {k: v for k, v in PLAIN.items() if k != "GPUSHMEM_BACKEND"}
    for more, said in ({}, "backend cpu"), ({"GPUSHMEM_BACKEND": "null"}, "backend null"):
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True,
            env=env | more | {"GPUSHMEM_VERBOSE": "1", "CUDA_VISIBLE_DEVICES": ""},
        )  # fmt: skip
        assert done.stdout.startswith("1 3.0 1 ")
        assert said in done.stderr
    script = tmp_path / "one.py"
    script.write_text("import gpushmem as shmem\nshmem.init()\nprint(shmem.n_pes())\n")
    assert run_cli("run", "--backend", "null", script, code=0).stdout == "1\n"
    done = run_cli("run", "-n", 2, "--backend", "null", script, code=1)
    assert "backend null has one PE, and this job has 2: use the backend cpu" in done.stderr


def test_a_wait_that_nothing_can_end_is_a_deadlock():
    shmem.init()
    flag = shmem.zeros(3, "uint64")
    for wait in (
        lambda: shmem.signal_wait_until(flag, shmem.CMP_EQ, 1),
        lambda: shmem.wait_until(flag, shmem.CMP_EQ, 1),
        lambda: shmem.wait_until_some(flag, np.zeros(3, "int64"), None, shmem.CMP_EQ, 1),
    ):
        with pytest.raises(shmem.Deadlock, match="waits for == 1, and there is no other PE"):
            wait()
    shmem.finalize()


def test_plans_can_be_made_and_say_that_they_cannot_be_called():
    from gpushmem.kernels import AllReduce

    shmem.init()
    plan = AllReduce(size=8, dtype="float32")
    with pytest.raises(shmem.ShmemError, match="the null backend runs no kernels"):
        plan(shmem.device_array(8, "float32"))
    plan.free()
    shmem.finalize()


# --- each host operation, beside the cpu backend


class Arrays:
    """What operations are called with, by name; the same values on both backends."""

    def __init__(self):
        kinds = (
            "float64", "float32", "int64", "int32", "uint64", "uint32", "int16", "bool",
            "complex64",
        )  # fmt: skip
        grid, tall = (shmem.array(np.arange(12.0).reshape(3, 4)) for _ in range(2))
        freed, self.registered = shmem.zeros(4), np.arange(8.0)
        shmem.free(freed)
        shmem.register(self.registered)
        self.known = {kind: shmem.array(np.arange(1, 9).astype(kind)) for kind in kinds} | {
            "wide": shmem.zeros(20), "short": shmem.zeros(3), "empty": shmem.zeros((0, 2)),
            "grid": grid, "columns": tall.T, "strided": tall[:, 1], "scalar": shmem.zeros(()),
            "odd": shmem.zeros(33, "uint8")[1:].view("uint64"), "flags": shmem.zeros(4, "uint64"),
            "pairs": shmem.zeros(8, [("value", "f4"), ("from", "i4")]),
            "device": shmem.to_device(np.arange(8.0)), "registered": self.registered,
            "host": np.arange(8.0), "freed": freed, "none": None,
            "indices": np.full(8, -1), "status": np.arange(8) % 2, "values": np.arange(8) + 1,
        }  # fmt: skip
        self.at_first = self.contents()

    def __getitem__(self, value):
        return self.known[value] if isinstance(value, str) and value in self.known else value

    def contents(self):
        """Copies of all that can be written."""
        there = {k: a for k, a in self.known.items() if a is not None and k != "freed"}
        return {k: a.numpy() if hasattr(a, "numpy") else a.copy() for k, a in there.items()}

    def restore(self):
        for name, values in self.at_first.items():
            self.known[name][...] = values


ARRAYS = (
    "float64", "float32", "int64", "int32", "uint64", "int16", "bool", "wide", "short", "empty",
    "grid", "columns", "strided", "scalar", "odd", "complex64", "pairs", "device", "registered",
    "host", "freed", "none", "text", 5,
)  # fmt: skip
# What the cpu backend compiles for each dtype gets fewer of them.
COMPILED = ("float64", "int32", "wide", "short", "columns", "device", "host", "freed", 5)
# Of each kind of parameter what is tried, the first being right.
TRIED = {
    "Symmetric": ARRAYS,
    "Array": ARRAYS,
    "Array | None": ("none", "status", "short", "float64", 7),
    "Scalar": (3, 2.5, -1, "abc", None, 1 << 70, np.int8(5)),
    "int": (0, 1, 2, -1, 99, 1.5, None, 1 << 70),
    "int | None": (0, 1000, -1, 1.5, "soon"),
    "Team": (0, shmem.TEAM_NODE, shmem.TEAM_INVALID, 9, 1.5, None),
    "Sequence[int]": ([0], (0,), [], [0, 0], [1], [-1], [1.5], ["a"], 5, None, "0"),
    "str": ("sum", "max", "xor", "maxloc", "mean", 5),
}
# ... of parameters with these names.
NAMED = {
    "signal": ("uint64", "flags", "int64", "empty", "odd", "device", "freed"),
    "ivar": ("int64", "uint32", "float64", "empty", "odd", "device", "freed"),
    "ivars": ("int64", "uint32", "float64", "empty", "odd", "device", "freed", "columns"),
    "indices": ("indices", "short", "float64", "none"),
    "pe": (0, 1, -1, 1.5, None),
    "op": (shmem.SIGNAL_SET, shmem.SIGNAL_ADD, 99),
    "cmp": (shmem.CMP_GE, *range(6), 77),
    "dst_stride": (1, 2, 0, -1),
    "src_stride": (1, 3, 0, -1),
    "nelems": (2, 0, 8, 9, -1),
    "size": (1, 0, 2),
    "xrange": (1, 0, 3, -1),
    "value": (1, 3, 0, -1, 300, 1 << 63, 1 << 70, 1.5, None),
}
VALUES = {"Array": ("values", "short", "none", 3), "Scalar": TRIED["Scalar"]}
FIRST = {"reduce": {"op": "sum"}, "reducescatter": {"op": "sum"}, "atomic_": {"dst": "int64"},
         "alltoalls": {"dst": "wide"}}  # fmt: skip


def tried(op, name):
    if name == "value" and op.roles[name].stub in VALUES:
        return VALUES[op.roles[name].stub]
    if name == "op" and op.roles[name].stub == "str":
        return TRIED["str"]
    if op.params[0] == "team" and op.roles[name].stub == "Symmetric":
        return COMPILED
    return NAMED.get(name) or TRIED[op.roles[name].stub]


def cases(op):
    """Arguments that are right, and all that differ from them in one place, or two."""
    right = {name: tried(op, name)[0] for name in op.params}
    right |= next((more for start, more in FIRST.items() if op.base.startswith(start)), {})
    right = {k: v for k, v in right.items() if k in op.params}
    yield right
    for name in op.params:
        for value in tried(op, name):
            yield right | {name: value}
            if name == "dst" and "src" in op.params:
                yield right | {"dst": value, "src": value}
            if name in ("dst", "signal", "ivar", "ivars") and "value" in op.params:
                for other in tried(op, "value"):
                    yield right | {name: value, "value": other}
            if name == "op" and "dst" in op.params and op.roles["op"].stub == "str":
                for kind in ("int32", "pairs"):
                    yield right | {"dst": kind, "src": kind, "op": value}


def seen(result):
    if isinstance(result, tuple):
        return tuple(map(seen, result))
    if hasattr(result, "numpy"):
        return type(result).__name__, result.numpy().tolist()
    if isinstance(result, np.generic):
        return result.dtype.name, result.tolist()
    return repr(result)


def which(said):
    """Whether any element was found: which of several it is differs from call to call."""
    return said if isinstance(said[1], str) else (said[0], said[1] >= 0)


def in_common(text):
    """What of an error's text does not depend on where a check is made: kernel or host."""
    text = re.sub(r"0x[0-9a-f]+", "0x?", text)
    text = re.sub(r"; (dst|src|it) is .*", "", text)
    return re.sub(r"(a|the) remote array .* is not on", "it is not on", text)


def outcomes(backend, op):
    """What each case returns or raises, and what is in the arrays then."""
    shmem.init(backend=backend, heap_size="4M")
    arrays, found = Arrays(), []
    for case in cases(op):
        arrays.restore()
        try:
            result = op.function(**{name: arrays[value] for name, value in case.items()})
            said = seen(result)
            for team in result if isinstance(result, tuple) else (result,):
                if isinstance(team, shmem.Team):
                    team.destroy()
        except shmem.ShmemError as error:
            said = type(error).__name__, in_common(str(error))
        found.append((case, said, arrays.contents()))
    shmem.finalize()
    return found


SAMPLE = ("broadcast", "signal_wait_until", "test_some")


@pytest.mark.parametrize(
    "base",
    [
        pytest.param(base, marks=pytest.mark.sweep)
        if HOST[base].typed and base not in SAMPLE
        else base
        for base in sorted(HOST)
    ],
)
def test_it_does_what_the_cpu_backend_does(base):
    op = HOST[base]
    for (case, ours, left), (_, theirs, there) in zip(
        outcomes("null", op), outcomes("cpu", op), strict=True
    ):
        told = which if "any" in base else tuple
        assert told(ours) == told(theirs), case
        for name, array in left.items():
            np.testing.assert_array_equal(array, there[name], f"{case}: {name}")
