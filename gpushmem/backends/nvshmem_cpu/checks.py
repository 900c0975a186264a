"""Checks of arguments that NVSHMEM takes on trust, with the cpu backend's errors.

They are inlined: a call might change memory, for all that is known then, and the optimiser would
not do to NVSHMEM's loads what it does on GPUs.
"""

from __future__ import annotations

from typing import Any

from numba import types

from gpushmem.artifacts.gpu_model import LANES
from gpushmem.backends.cpu.operations import access, async_copies, hook, smem
from gpushmem.backends.cpu.operations.access import (
    aligned,
    as_world,
    check_pe,
    check_qp_of_operation,
    check_qps,
    remote,
)
from gpushmem.backends.cpu.operations.collectives import team_at
from gpushmem.backends.cpu.sync.barrier import as_team
from gpushmem.backends.operation_errors import (
    BAD_AMOUNT,
    BAD_COMPARISON,
    BAD_ROOT,
    BAD_SIGNAL_OP,
    BAD_TIMEOUT,
    EMPTY,
    NO_ROOM,
    NOT_DIVISIBLE,
    SMALL_BLOCK,
    TOO_SHORT,
    TOO_SMALL,
)
from gpushmem.backends.vector_accesses import WIDEST
from gpushmem.native.memory import i64
from gpushmem.native.structs import view
from gpushmem.ops import CMP_EQ, CMP_GE, SIGNAL_ADD, SIGNAL_SET, SMEM_BARRIERS_ONLY
from gpushmem.ops.roles import (
    Amount,
    Comparison,
    Counted,
    Element,
    FromMembers,
    Own,
    QueuePair,
    QueuePairs,
    Remote,
    SignalOp,
    ToMembers,
    Words,
)
from gpushmem.ops.row import BLOCK, DATA, LINE, Effect
from gpushmem.simt.functions import inlined
from gpushmem.simt.layout import THREAD
from gpushmem.simt.thread import fail_if, thread_word, user_word

__all__ = ["GIVING", "check", "check_given"]


as_thread = view(THREAD)
far, check_strides, check_reach = (
    inlined(function.py_func) for function in (remote, access.check_numbers, access.check_reach)
)


@inlined
def check_remote(address, nbytes, pe):
    far(address, nbytes, pe)


@inlined
def check_own(address, nbytes):
    far(address, nbytes, as_world(user_word()).my_pe)


@inlined
def check_count(first, n):
    fail_if(n < 1, EMPTY, first, 0, 0, 0)


@inlined
def check_sizes(dst, src, at_dst, at_src):
    fail_if(dst < src, TOO_SMALL, dst, src, at_dst, at_src)


@inlined
def check_team(team):
    team_at(team)


@inlined
def check_aligned(address, nbytes):
    aligned(address, nbytes)


@inlined
def check_vector(address, nbytes):
    aligned(address, min(nbytes, WIDEST))


@inlined
def check_comparison(cmp):
    fail_if(cmp < CMP_EQ or cmp > CMP_GE, BAD_COMPARISON, cmp, 0, 0, 0)


@inlined
def check_signal_op(op):
    if op != SIGNAL_SET:
        fail_if(op != SIGNAL_ADD, BAD_SIGNAL_OP, op, 0, 0, 0)


check_has_all = inlined(smem.check_has_all.py_func)
check_piece = inlined(async_copies.check_piece.py_func)


@inlined
def check_amount(amount):
    fail_if(amount < 0 or amount > SMEM_BARRIERS_ONLY, BAD_AMOUNT, amount, 0, 0, 0)


@inlined
def check_limit(timeout_ns):
    fail_if(timeout_ns < 0, BAD_TIMEOUT, timeout_ns, 0, 0, 0)


@inlined
def check_length(n, length):
    fail_if(length < n, TOO_SHORT, n, length, 0, 0)


@inlined
def members(team):
    return as_team(team_at(team)).n_pes


@inlined
def check_root(root, n):
    fail_if(root < 0 or root >= n, BAD_ROOT, root, n - 1, 0, 0)


@inlined
def check_parts(n, parts):
    fail_if(n % parts != 0, NOT_DIVISIBLE, n, parts, 0, 0)


@inlined
def check_threads(least):
    bdim = as_thread(thread_word()).bdim
    threads = bdim[0] * bdim[1] * bdim[2]
    fail_if(threads < least, SMALL_BLOCK, threads, least, 0, 0)


@inlined
def check_room(have, need, address):
    fail_if(have < need, NO_ROOM, have, need, address, 0)


def check(call: hook.Call) -> None:
    """Add checks of a call's arguments."""
    facts = call.op.facts
    if (facts.meets or facts.effects) and "team" in call.values:
        call.run(check_team, call.integer("team"))
    for name, role in call.op.roles.items():
        if role in NUMBERS:
            call.run(NUMBERS[role], call.integer(name))
    if call.op.named(QueuePairs):
        call.run(check_pe, call.integer("pe"))
        call.run(check_qps, call.address("qps"), call.count("qps"))
    if call.op.named(Words):
        _check_vector(call)
    _check_copy(call)
    _check_waited(call)
    for effect in facts.effects:
        _check_effect(call, effect)
        if effect.kind == LINE:
            call.run(check_threads, i64(LANES))
    if facts.meets and call.op.arrays:
        _check_collective(call)


NUMBERS = {
    Amount: check_amount,
    Comparison: check_comparison,
    QueuePair: check_qp_of_operation,
    SignalOp: check_signal_op,
}
GIVING = "give_smem", "release_smem"


def check_given(call: hook.Call) -> None:
    """Add the checks of shared memory that is given, for one thread of the block."""
    if call.op.base == "give_smem":
        nbytes = call.builder.mul(call.count("smem"), call.itemsize("smem"))
        call.run(smem.give, call.address("smem"), nbytes)
    else:
        call.run(smem.take_back)


def _check_vector(call: hook.Call) -> None:
    given, item = call.argtypes, call.itemsize("array")
    n = len(given["value"]) if "value" in given else given["n"].literal_value
    call.run(check_vector, call.address("array"), call.builder.mul(item, i64(n)))


def _check_copy(call: hook.Call) -> None:
    base = call.op.plain
    if base in (
        "put",
        "get",
        "put_signal",
        "copy",
        "reduce_local",
        "multimem_reduce",
        "multimem_store",
    ):
        counts = [call.count(name) for name in (("dst", "src"), ("src", "dst"))[base == "get"]]
        addresses = [call.address(name) for name in ("dst", "src")]
        call.run(check_sizes, *counts, *addresses)
    elif base == "copy_async":
        addresses = [call.address(name) for name in ("dst", "src")]
        nbytes = call.builder.mul(call.integer("n"), call.itemsize("src"))
        call.run(check_piece, *addresses, nbytes)
    elif base in ("iput", "iget"):
        _check_strides(call, call.integer("nelems"))


def _check_strides(call: hook.Call, n: Any) -> None:
    strides = {name: call.integer(f"{name}_stride") for name in ("src", "dst")}
    call.run(check_strides, strides["dst"], strides["src"], n)
    for name, stride in strides.items():
        call.run(check_reach, stride, n, call.count(name), call.address(name))


def _check_waited(call: hook.Call) -> None:
    """Arrays that the caller waits for, and those that are as long."""
    waited = None
    for name, role in call.op.arrays.items():
        if issubclass(role, Own):
            waited = call.count(name)
            call.run(check_aligned, call.address(name), call.itemsize(name))
            nbytes = call.builder.mul(waited, call.itemsize(name))
            call.run(check_own, call.address(name), nbytes)
        elif issubclass(role, Counted) and isinstance(call.argtypes[name], types.Array):
            call.run(check_length, waited, call.count(name))
    timeout = call.argtypes.get("timeout_ns")
    if isinstance(timeout, types.Integer) and timeout.signed:
        call.run(check_limit, call.integer("timeout_ns"))


def _check_effect(call: hook.Call, effect: Effect) -> None:
    """An element, and what is on another PE."""
    array, base = effect.array, call.op.plain
    if effect.extent == "0":
        call.run(check_count, call.address(array), call.count(array))
        if effect.kind != DATA and base != "p":
            call.run(check_aligned, call.address(array), call.itemsize(array))
    if issubclass(call.op.arrays[array], Remote | Element) and "pe" in call.values:
        call.run(check_remote, call.address(array), call.nbytes(effect), call.integer("pe"))
    if issubclass(call.op.arrays[array], FromMembers | ToMembers) and not call.op.facts.meets:
        call.run(check_own, call.address(array), call.nbytes(effect))


SUMMING = ("reduce", "reducescatter")


def _check_collective(call: hook.Call) -> None:
    call.run(check_has_all)
    base, src = call.op.base, call.count("src")
    n = call.run(members, call.integer("team"), returns=types.intp)
    if base in SUMMING and call.op.scope == BLOCK:
        call.run(check_threads, i64(LANES))
    if base == "broadcast":
        call.run(check_root, call.integer("root"), n)
    if base in ("alltoall", "reducescatter"):
        call.run(check_parts, src, n)
    if base == "alltoalls":
        _check_strides(call, call.builder.mul(n, call.integer("nelems")))
    else:
        need = src
        if base == "fcollect":
            need = call.builder.mul(src, n)
        elif base == "reducescatter":
            need = call.builder.sdiv(src, n)
        call.run(check_room, call.count("dst"), need, call.address("dst"))
    for name in ("dst", "src"):
        nbytes = call.builder.mul(call.count(name), call.itemsize(name))
        call.run(check_own, call.address(name), nbytes)
