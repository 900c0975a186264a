"""The place that every operation passes when it is lowered."""

import re
from functools import partial

import numpy as np
import pytest
from llvmlite import ir
from numba.cuda import types

import gpushmem as shmem
from gpushmem.backends.cpu import lowering
from gpushmem.backends.cpu.operations import hook
from gpushmem.backends.operation_calls import Operation
from gpushmem.diagnosis.instrumentation import written
from gpushmem.ops import OPS
from gpushmem.ops.row import READS
from gpushmem.simt.compiler import target
from gpushmem.simt.grid import entry

pytestmark = pytest.mark.cpu_backend
WORDS = np.zeros(8, np.int64)


@pytest.fixture
def lowered(monkeypatch):
    """`lowered(name, *observers)`: lower a row anew, for those who observe it."""
    lowering.install()

    def lower(name, *observers):
        op = OPS[name]
        monkeypatch.setattr(hook, "OBSERVERS", list(observers))
        monkeypatch.setitem(
            target.names, op.function, Operation(op, partial(lowering.lowering_of, op))
        )

    return lower


def recording(wants=lambda op: True):
    """An observer that writes what it sees of a call to WORDS: how often, PE, place and bytes."""

    def generate(call):
        builder, at = call.builder, WORDS.__array_interface__["data"][0]
        place = builder.inttoptr(ir.IntType(64)(at), ir.IntType(64).as_pointer())
        effect = call.op.facts.effects[-1]
        count = builder.add(builder.load(place), ir.IntType(64)(1))
        words = [count, call.integer("pe"), call.address(effect.array), call.nbytes(effect)]
        for k, word in enumerate(words):
            builder.store(word, builder.gep(place, [ir.IntType(64)(k)]))

    return hook.Observer(wants, generate)


@pytest.mark.parametrize(
    ("name", "call", "nbytes"),
    [
        ("put", lambda a, s: shmem.put(a, a[:3], 0), 24),
        ("put_block", lambda a, s: shmem.put_block(a[:4], a[4:], 0), 32),
        ("get_warp", lambda a, s: shmem.get_warp(a[:2], a, 0), 16),
        ("iput", lambda a, s: shmem.iput(a, a[4:], 3, 1, 2, 0), 32),
        ("atomic_add", lambda a, s: shmem.atomic_add(a, 1, pe=0), 8),
        ("p", lambda a, s: shmem.p(a, 1, 0), 8),
        ("put_signal", lambda a, s: shmem.put_signal(a, a, s, 1, shmem.SIGNAL_SET, 0), 8),
    ],
)
def test_an_observer_sees_each_call(alone, lowered, name, call, nbytes):
    lowered(name, recording())
    called = shmem.jit(device=True)(call)

    @shmem.jit(cache=False)
    def kernel(a, signal):
        called(a, signal)

    WORDS[:] = -1, -1, -1, -1, 0, 0, 0, 0
    WORDS[0] = 0
    a, signal = shmem.zeros(8, "int64"), shmem.zeros(1, "uint64")
    kernel[1, 2](a, signal)
    shmem.synchronize()
    calls = 2 if OPS[name].scope == "thread" else 1  # the last thread to come acts for all
    address = (signal if "signal" in name else a).__array_interface__["data"][0]
    assert WORDS[:4].tolist() == [calls, 0, address, nbytes]


def machine_code(function, *argtypes):
    _, built = entry.build(function, argtypes)
    return re.sub(r"_ZN[\w.$]+", "kernel", built.assembly())


def kernel_of(name):
    operation = OPS[name].function

    def copies(a, b, pe):
        operation(a, b, pe)

    def element(a, b, pe):
        operation(a, 1, pe)

    return copies if "src" in OPS[name].params else element


@pytest.mark.parametrize("name", ["put", "get", "p", "atomic_add"])
def test_what_nobody_observes_costs_nothing(lowered, monkeypatch, name):
    """Also where the store has what somebody observes."""
    array = types.Array(types.int64, 1, "C")
    signature = array, array, types.int64
    op = OPS[name]
    plain = Operation(op, lambda: target.device(lowering.BODIES[op.base]))
    lowered(name, *hook.OBSERVERS)
    observed = machine_code(kernel_of(name), *signature)
    monkeypatch.setitem(target.names, op.function, plain)
    alone = machine_code(kernel_of(name), *signature)
    assert (observed != alone) == (name != "get")  # the journal has what is written
    lowered(name)
    assert machine_code(kernel_of(name), *signature) == alone
    lowered(name, recording(wants=lambda op: False))
    assert machine_code(kernel_of(name), *signature) == alone
    lowered(name, recording())
    assert machine_code(kernel_of(name), *signature) != alone


def test_the_journal_notes_what_the_rows_say_is_written():
    """And of rows whose effects are on memory of one other PE, those alone."""
    for op in OPS.values():
        writing = [e for e in op.facts.effects if e.how != READS and "pe" in op.params]
        remote = [e for e in writing if op.arrays[e.array].symmetric]
        assert written(op) == remote, op.name
