"""The operations in kernels: the nvshmem backend's, with NVSHMEM's functions inside.

What a call of an operation calls is what it calls on GPUs. Around it, this backend checks the
arguments that NVSHMEM takes on trust, notes what is written (`cpu.hook`), and says what a thread
waits for while it is in one of NVSHMEM's loops. Nothing of this synchronises threads.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any

from numba import types
from numba.core import cgutils

from gpushmem.backends import argument_types
from gpushmem.backends.calls import Operation
from gpushmem.backends.code import with_signature
from gpushmem.backends.cpu import hook
from gpushmem.backends.cpu.access import (
    EMPTY,
    TOO_SMALL,
    address_of,
    aligned,
    remote,
)
from gpushmem.backends.cpu.collectives import team_at
from gpushmem.backends.cpu.rounds import as_team
from gpushmem.backends.cpu.waits import width_of
from gpushmem.backends.nvshmem import lowering
from gpushmem.backends.nvshmem.composed import parameters_of
from gpushmem.backends.nvshmem_cpu import functions
from gpushmem.diagnosis.account import CALL
from gpushmem.ops import OPS, TEAM_WORLD
from gpushmem.ops.roles import Element, Remote
from gpushmem.ops.row import BLOCK, THREAD, WARP, Op
from gpushmem.simt.base.layout import THREAD as THREAD_RECORD
from gpushmem.simt.base.layout import view
from gpushmem.simt.base.native import intrinsic
from gpushmem.simt.compiler.primitives import (
    begin_wait,
    end_wait,
    fail_if,
    text_word,
    thread_word,
)
from gpushmem.simt.compiler.target import bind, call_device, device, made_of

__all__ = ["install"]

as_thread = view(THREAD_RECORD)


def install() -> None:
    """Give every row of the operation table its meaning in kernels on this backend."""
    if _installed:
        return
    _installed.append(True)
    functions.install()
    made_of.append(f"NVSHMEM {functions.library().digest}")
    for name, meaning in lowering.meanings().items():
        op = OPS[name]
        operation = Operation(op, partial(_around, op, meaning), lowering.check, polls=op.hears)
        bind(op.function, operation)
        if "op" in op.params and op.facts.meets:
            _ = operation.meaning  # Numba must know intrinsics before it compiles


_installed: list[bool] = []


# --- around a call


@device
def leads(width):
    """Whether the thread is the first of its block, or of its warp."""
    thread = as_thread(thread_word())
    x, y, z = thread.tid[0], thread.tid[1], thread.tid[2]
    return (x + thread.bdim[0] * (y + thread.bdim[1] * z)) % width == 0


WIDTHS = {THREAD: 1, WARP: 32, BLOCK: 1024}


def _around(op: Op, meaning: Any) -> Any:
    """A row's meaning, with what this backend does around it; the meaning itself if nothing."""
    if op.facts.meets and "op" in op.params:
        return _chosen(op, meaning)
    return _surrounded(op, meaning, parameters_of(op))


def _surrounded(op: Op, meaning: Any, parameters: list[Any]) -> Any:
    steps = [step for step in (_checked(op), _told(op, parameters)) if step is not None]
    waits = _waiting(op)
    if not steps and waits is None:
        return meaning
    before = _all_of(steps)

    @device
    def call(given):
        before(given)
        return meaning(*given)

    @device
    def wait(given):
        before(given)
        waits(given)
        result = meaning(*given)
        end_wait()
        return result

    return device(with_signature(op.name, parameters, call if waits is None else wait))


def _all_of(steps: list[Any]) -> Any:
    """A device function that calls all of `steps`, two at most."""
    if len(steps) == 1:
        return steps[0]
    first, second = steps or (nothing, nothing)

    @device
    def both(given):
        first(given)
        second(given)

    return both


@device
def nothing(given):
    pass


def _chosen(op: Op, meaning: Any) -> Any:
    """A reduction, whose argument `op` must stay a literal."""

    @cache
    def with_op(which: str) -> Any:
        @device
        def reduce(team, dst, src):
            meaning(team, dst, src, which)

        return _surrounded(op, reduce, ["team", "dst", "src"])

    @intrinsic(prefer_literal=True)
    def choose(typingctx: Any, team: Any, dst: Any, src: Any, op_: Any) -> Any:
        which = argument_types.literal_reduction(op.name, op_)
        types_ = tuple(map(types.unliteral, (team, dst, src)))
        with_op(which).compile_device(types_)  # so that its errors are found here

        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            return call_device(builder, with_op(which), types.void(*types_), args[:-1])

        return types.void(*types_, op_), codegen

    return choose


# --- notes


def _told(op: Op, parameters: list[Any]) -> Any:
    """What the observers of a row add: once for a warp or a block."""
    if not hook.is_observed(op):
        return None
    names = [p if isinstance(p, str) else p.name for p in parameters]
    tell, width = hook.observed(op, names, nothing), WIDTHS[op.scope]

    @device
    def told(given):
        if leads(width):
            tell(given)

    return told


# --- checks of arguments


@device
def check_remote(address, nbytes, pe):
    remote(address, nbytes, pe)


@device
def check_count(first, n):
    fail_if(n < 1, EMPTY, first, 0, 0, 0)


@device
def check_sizes(dst, src, at_dst, at_src):
    fail_if(dst < src, TOO_SMALL, dst, src, at_dst, at_src)


@device
def check_team(team):
    team_at(team)


@device
def check_aligned(address, nbytes):
    aligned(address, nbytes)


def _checked(op: Op) -> Any:
    """The checks of a row's arguments, as the cpu backend makes them; None if it has none."""
    if not ("pe" in op.params or "team" in op.params or op.facts.waits_for):
        return None
    names = op.params

    @intrinsic
    def check(typingctx: Any, given: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            types_ = dict(zip(names, given, strict=False))
            values = dict(zip(names, cgutils.unpack_tuple(builder, args[0]), strict=False))
            _check(hook.Call(op, types_, values, context, builder))
            return context.get_dummy_value()

        return types.void(given), codegen

    @device
    def checked(given):
        check(given)

    return checked


def _check(call: hook.Call) -> None:
    op = call.op
    if "team" in call.values:
        call.run(check_team, call.integer("team"))
    if {"dst", "src"} <= call.values.keys() and op.base in ("put", "get", "put_signal"):
        counts = [call.count(name) for name in (("dst", "src"), ("src", "dst"))[op.base == "get"]]
        addresses = [call.address(name) for name in ("dst", "src")]
        call.run(check_sizes, *counts, *addresses)
    for effect in op.facts.effects:
        array = effect.array
        if effect.extent == "0":
            call.run(check_count, call.address(array), call.count(array))
            if effect.kind != "data" and not op.base.startswith(("p", "g")):
                call.run(check_aligned, call.address(array), call.itemsize(array))
        if issubclass(op.arrays[array], Remote | Element) and "pe" in call.values:
            call.run(check_remote, call.address(array), call.nbytes(effect), call.integer("pe"))


# --- what a thread waits for


def _waiting(op: Op) -> Any:
    """What a thread says before it waits in a row; None if it does not wait, or for no word."""
    if op.facts.meets:
        return _meeting(op)
    if not op.waits or op.base not in ("signal_wait_until", "wait_until"):
        return None
    name = op.name

    @device
    def waits(given):
        array, cmp, value = given[0], given[1], given[2]
        begin_wait(text_word(name), address_of(array), cmp, types.intp(value), width_of(array))

    return waits


def _meeting(op: Op) -> Any:
    name, width, of_team = op.name, WIDTHS[op.scope], "team" in op.params

    @device
    def meets(given):
        record = team_at(given[0] if of_team else TEAM_WORLD)
        team = as_team(record)
        if leads(width):
            team.calls += 1
        begin_wait(text_word(name), record, CALL, team.calls, 8)

    return meets
