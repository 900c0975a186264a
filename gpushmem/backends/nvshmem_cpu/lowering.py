"""The operations in kernels: the nvshmem backend's, with NVSHMEM's functions inside.

What a call of an operation calls is what it calls on GPUs. Around it, this backend checks the
arguments that NVSHMEM takes on trust, notes what is written (`cpu.hook`), and says what a thread
waits for while it is in one of NVSHMEM's loops. Nothing of this synchronises threads.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

from numba import types
from numba.core import cgutils
from numba.cuda.extending import _Intrinsic as Intrinsic

from gpushmem.backends.codegen import with_signature
from gpushmem.backends.cpu.operations import hook, trace_ranges
from gpushmem.backends.cpu.operations.access import LANES_OF, as_world, leads
from gpushmem.backends.cpu.operations.collectives import team_at
from gpushmem.backends.cpu.sync.barrier import as_team
from gpushmem.backends.nvshmem.operations import lowering, mathdx
from gpushmem.backends.nvshmem.operations.composed import parameters_of
from gpushmem.backends.nvshmem_cpu import functions
from gpushmem.backends.nvshmem_cpu.checks import GIVING, check, check_given
from gpushmem.backends.operation_calls import Operation
from gpushmem.diagnosis.pe_state import CALL
from gpushmem.native.memory import i64, intrinsic
from gpushmem.ops import OPS, TEAM_WORLD
from gpushmem.ops.roles import Timeout
from gpushmem.ops.row import BLOCK, THREAD, WARP, Op
from gpushmem.simt.embed import bind
from gpushmem.simt.functions import device
from gpushmem.simt.thread import (
    arrive_in_call,
    begin_wait,
    block_group,
    end_wait,
    release,
    user_word,
    warp_group,
)

__all__ = ["install"]


def install() -> None:
    """Give every row of the operation table its meaning in kernels on this backend."""
    if hook.take_over("nvshmem-cpu", f"NVSHMEM {functions.library().digest}"):
        for function, operation in _operations().items():
            bind(function, operation)


@cache
def _operations() -> dict[Any, Operation]:
    """The operation of each function of the table."""
    functions.install()
    mathdx.do_without()
    made = {}
    for name, meaning in lowering.meanings().items():
        op = OPS[name]
        lower = partial(_around, op, meaning)
        if op.base in trace_ranges.MEANINGS:
            lower = partial(trace_ranges.MEANINGS[op.base], op)
        operation = Operation(op, lower, lowering.check, polls=op.hears)
        made[op.function] = operation
        _ = operation.meaning  # Numba must know intrinsics before it compiles
    return made


# --- around a call


GROUPS = {WARP: warp_group, BLOCK: block_group}


def _around(op: Op, meaning: Any) -> Any:
    """A row's meaning, with what this backend does around it."""
    if isinstance(meaning, Intrinsic):
        return _inside_intrinsic(op, meaning)
    parameters = parameters_of(op)
    names = [parameter.name for parameter in parameters]

    @intrinsic
    def begin(typingctx: Any, given: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            values = cgutils.unpack_tuple(builder, args[0])
            return _begin(_call(op, names, given, values, context, builder))

        return types.intp(given), codegen

    @intrinsic
    def end(typingctx: Any, given: Any, result: Any, token: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            values = cgutils.unpack_tuple(builder, args[0])
            _end(_call(op, names, given, values, context, builder), result, *args[1:])
            return context.get_dummy_value()

        return types.void(given, result, types.intp), codegen

    @device
    def call(given):
        token = begin(given)
        result = meaning(*given)
        end(given, result, token)
        return result

    return device(with_signature(op.name, parameters, call))


def _inside_intrinsic(op: Op, meaning: Any) -> Any:
    """The same for an intrinsic, which can return records and arrays."""
    taken = [p for p in parameters_of(op) if op.roles[p.name] is not Timeout]
    names = [p.name for p in taken]

    def define(typingctx: Any, *given: Any) -> Any:
        signature, generate = meaning._defn(typingctx, *given)

        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            call = _call(op, names, sig.args, args, context, builder)
            token = _begin(call)
            result = generate(context, builder, sig, args)
            _end(call, sig.return_type, result, token)
            return result

        return signature, codegen

    definition = with_signature(op.name, ["typingctx", *taken], lambda given: define(*given))
    made = Intrinsic(f"{op.name}_on_cpu", definition, meaning._prefer_literal)
    made._register()
    return made


def _call(op: Op, names: Any, given: Any, values: Any, context: Any, builder: Any) -> hook.Call:
    types_ = dict(zip(names, given, strict=False))
    return hook.Call(op, types_, dict(zip(names, values, strict=False)), context, builder)


def _begin(call: hook.Call) -> Any:
    """Before the operation; returns what the observers' code after it gets."""
    op, token = call.op, cgutils.alloca_once_value(call.builder, i64(0))
    if op.base == "peer_array" and hook.is_separated():
        call.run(note_far, call.integer("pe"))
    check(call)
    if op.base in GIVING:  # GPUs that have TMA synchronise there
        _meet(call)
        _by_first(call, partial(check_given, call))
    if hook.is_observed(op):
        _gather(call)
        _by_first(call, lambda: call.builder.store(hook.generate(call), token))
    if op.facts.meets:
        team = call.integer("team") if "team" in call.values else i64(int(TEAM_WORLD))
        _says(call, meets, team, i64(LANES_OF[op.scope]))
    elif _waits(call):
        array = op.facts.waits_for
        words = call.address(array), call.integer("cmp"), call.integer("value")
        _says(call, begin_wait, *words, _width(call, array))
    return call.builder.load(token)


def _end(call: hook.Call, kind: Any, result: Any, token: Any) -> None:
    """After it; its result is of a type of Numba's."""
    op = call.op
    if op.facts.meets or _waits(call):
        call.run(end_wait)
    if hook.is_followed(op):
        _gather(call)
        _by_first(call, partial(hook.generate_after, call, kind, result, token))
        _gather(call)
        if _gathers(op):
            call.run(hook.group_called(op))


def _by_first(call: hook.Call, generate: Callable[[], None]) -> None:
    """Generate code for the first thread of the call's group."""
    if call.op.scope == THREAD:
        generate()
    else:
        first = call.run(leads, i64(LANES_OF[call.op.scope]), returns=types.boolean)
        with call.builder.if_then(first):
            generate()


def _gather(call: hook.Call) -> None:
    """Let the threads of the call's group wait for each other, if an observer wants them to."""
    if _gathers(call.op):
        _meet(call)


def _meet(call: hook.Call) -> None:
    call.run(gather, call.run(GROUPS[call.op.scope], returns=types.intp), _name(call))


def _gathers(op: Op) -> bool:
    """Whether an observer has to know when all are in the call, and when none is any more."""
    return op.scope != THREAD and hook.group_called(op) is not None


@device
def gather(group, what):
    if arrive_in_call(group, what):
        release(group)


def _waits(call: hook.Call) -> bool:
    """Whether the call waits for one word, for as long as it takes."""
    timeout = call.argtypes.get("timeout_ns")
    forever = timeout is None or isinstance(timeout, types.NoneType | types.Omitted)
    return call.op.base in ("signal_wait_until", "wait_until") and forever


@device
def note_far(pe):
    """The array may be null: then who uses it is told of which PE it was."""
    as_world(user_word()).far = pe


# --- what a thread waits for


@device
def meets(what, number, width):
    """Say that the thread is in a call of a team, which its first thread counts."""
    record = team_at(number)
    team = as_team(record)
    if leads(width):
        team.calls += 1
    begin_wait(what, record, CALL, team.calls, 8)


def _says(call: hook.Call, function: Any, *words: Any) -> None:
    """Call a function of the operation's name and of words."""
    call.run(function, _name(call), *words)


def _name(call: hook.Call) -> Any:
    """The address of the operation's name."""
    text = call.context.insert_const_string(call.builder.module, call.op.name)
    return call.builder.ptrtoint(text, i64)


def _width(call: hook.Call, array: str) -> Any:
    """Bytes of an element, negative if it is signed: how a report has to read it."""
    dtype = call.argtypes[array].dtype
    return i64(-dtype.bitwidth // 8 if dtype.signed else dtype.bitwidth // 8)
