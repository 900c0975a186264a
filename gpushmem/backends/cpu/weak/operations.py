"""The operations in kernels while memory is weak: those that may be performed late.

Each makes a PENDING record of what is to be done, and commits it (`pending`); arguments are checked
as ever. The others are as in `lowering`, `atomics` and `collectives`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from gpushmem.backends.codegen import with_signature
from gpushmem.backends.cpu.operations import (
    atomics,
    collectives,
    combining,
    ll,
    mbarriers,
    multicast,
    waits,
    weighing,
)
from gpushmem.backends.cpu.operations.access import (
    address_of,
    aligned,
    as_world,
    check_pe,
    check_qp_of_operation,
    check_qps,
    check_strides,
    copy_element,
    copy_strided,
    itemsize_of,
    load_element,
    reach,
    remote,
    remote_element,
    size_of,
    store_element,
)
from gpushmem.backends.cpu.operations.async_copies import piece_of
from gpushmem.backends.cpu.operations.dynamic_updates import (
    ADD,
    AND,
    FLOAT_ADD,
    NOTHING,
    OR,
    SET,
    XOR,
)
from gpushmem.backends.cpu.weak.pending import (
    ALL_QPS,
    DEFAULT_QPS,
    FROM,
    OWN,
    SYNCED,
    TO,
    as_line,
    as_pending,
    as_weak,
    ask,
)
from gpushmem.backends.cpu.weak.visibility import as_seen, copy_as_seen, forget
from gpushmem.backends.operation_errors import BAD_SIGNAL_OP, TOO_SMALL
from gpushmem.native.memory import (
    copy_bytes,
    full_fence,
    i64,
    intrinsic,
    libc_free,
    malloc,
    release_fence,
)
from gpushmem.native.structs import view
from gpushmem.ops import QP_DEFAULT, SIGNAL_ADD, SIGNAL_SET
from gpushmem.ops.row import BLOCK, THREAD, WARP, Op
from gpushmem.simt.functions import device, kept
from gpushmem.simt.layout import BLOCK as BLOCK_RECORD
from gpushmem.simt.layout import FIBER, GROUP, LAUNCH
from gpushmem.simt.thread import (
    begin_wait,
    end_wait,
    fail_if,
    fiber_word,
    launch_word,
    pause,
    text_word,
    user_word,
)

__all__ = [
    "ANY", "BODIES", "ROLLED", "body_of", "by_any_thread", "commit", "force", "record", "released",
    "roll", "stored_to_peer", "weak",
]  # fmt: skip

as_block, as_fiber, as_group, as_launch = map(view, (BLOCK_RECORD, FIBER, GROUP, LAUNCH))
SCOPES = THREAD, WARP, BLOCK  # as `pending.commit` numbers them
ROLLED = 16
# A copy that a thread has begun, see `begun`.
COPY = np.dtype([(name, "i8") for name in ("next", "target", "source", "nbytes", "barrier")])
as_copy, COPY_BYTES = view(COPY), COPY.itemsize
AHEAD = 2  # a group's `acted`: its call has been performed before all threads have arrived


@device
def weak():
    """Address of the WEAK record of the calling thread's PE; plain loads and stores ask, too.

    So, unlike `user_word`, it does not tell that the kernel calls operations.
    """
    return as_world(as_launch(launch_word()).user).weak


@device
def record(pe, nbytes):
    """A new PENDING record, with room for so many bytes, which it would copy from there."""
    entry = malloc(OWN + nbytes)
    it = as_pending(entry)
    it.pe, it.nbytes, it.count, it.source = pe, nbytes, 1, entry + OWN
    it.target_step = it.source_step = it.data = 0
    it.what, it.borrows, it.plain, it.qp = NOTHING, 0, 0, QP_DEFAULT
    return entry


@device
def commit(entry, scope):
    """Perform what a record says, or hold it back; `scope`: of whose call it is, see SCOPES."""
    fiber, launch = fiber_word(), launch_word()
    own = weak()
    if fiber != 0:
        as_fiber(fiber).clock += 1
    ask(as_weak(own).commit, (own, entry, fiber, launch, scope))


# --- updates of one element


@intrinsic
def word_of(typingctx: Any, value: Any) -> Any:
    """The bits of a number, as a word."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        bits = args[0]
        if isinstance(value, types.Float):
            bits = builder.bitcast(bits, ir.IntType(value.bitwidth))
        return bits if value.bitwidth == 64 else builder.zext(bits, i64)

    return types.intp(value), codegen


@intrinsic
def adding(typingctx: Any, value: Any) -> Any:
    """How a number of this type is added."""
    what = FLOAT_ADD if isinstance(value, types.Float) else ADD

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return context.get_constant(types.intp, what)

    return types.intp(value), codegen


@device
def update(entry, address, what, width, value):
    """Let a record also update an element."""
    it = as_pending(entry)
    it.what, it.address, it.width, it.value = what, address, width, value


@device
def signal(entry, signal, value, op, pe):
    address = aligned(remote_element(signal, pe), itemsize_of(signal))
    fail_if(op not in (SIGNAL_SET, SIGNAL_ADD), BAD_SIGNAL_OP, op, 0, 0, 0)
    what = SET if op == SIGNAL_SET else ADD
    update(entry, address, what, 8, types.intp(value))


HOW = {  # atomic operations that return nothing
    "set": device(lambda value: SET),
    "add": adding,
    "inc": adding,
    "and": device(lambda value: AND),
    "or": device(lambda value: OR),
    "xor": device(lambda value: XOR),
}


def _atomic(op: Op) -> Any:
    """An atomic operation: one of `HOW` may be late, others follow what is pending."""
    how = HOW.get(op.base.removeprefix("atomic_"))
    if how is None:
        return _after_own(op, atomics.BODIES[op.base])

    @device
    def by(dst, value, pe):
        address = atomics.place_of(dst, pe)
        entry = record(pe, 0)
        number = atomics.element(dst, value)
        update(entry, address, how(number), itemsize_of(dst), word_of(number))
        commit(entry, 0)

    def one(dst, pe):
        by(dst, 1, pe)

    def some(dst, value, pe):
        by(dst, value, pe)

    return some if "value" in op.params else one


@device
def force(address, nbytes, plain):
    """Perform this PE's pending operations on some bytes; if asked, its plain stores only."""
    own = weak()
    ask(as_weak(own).force, (own, address, address + nbytes, plain))


@device
def come_before(dst, pe):
    """Perform what comes before an operation on an element that is performed at once."""
    address, own = remote_element(dst, pe), weak()
    ask(as_weak(own).catch_up, (own, pe))
    force(address, itemsize_of(dst), 0)


def _after_own(op: Op, inner: Any) -> Any:
    """An atomic operation that is performed at once.

    It comes after this PE's own on the element, and after those to the PE with a fence between.
    """
    call = device(inner)

    def fetch(dst, pe):
        come_before(dst, pe)
        return call(dst, pe)

    def exchange(dst, value, pe):
        come_before(dst, pe)
        return call(dst, value, pe)

    def if_it_is(dst, cond, value, pe):
        come_before(dst, pe)
        return call(dst, cond, value, pe)

    if "cond" in op.params:
        return if_it_is
    return exchange if "value" in op.params else fetch


# --- copies


def _late(op: Op, record_of: Any) -> Any:
    """The body of an operation: `record_of` makes the record from its arguments, as a tuple."""
    scope, on_qp = SCOPES.index(op.scope), op.plain != op.base

    @device
    def on_default(given):
        commit(record_of(given), scope)

    @device
    def on_one(given):
        qp = given[-1]
        check_qp_of_operation(qp)
        entry = record_of(given[:-1])
        as_pending(entry).qp = qp
        commit(entry, scope)

    return with_signature(op.base, op.params, on_one if on_qp else on_default)


def _p(op: Op) -> Any:
    @device
    def p(given):
        dst, value, pe = given
        target = remote_element(dst, pe)
        entry = record(pe, itemsize_of(dst))
        as_pending(entry).target = target
        store_element(dst, entry + OWN, value)
        return entry

    return _late(op, p)


@device
def copy_of(dst, src, pe, late):
    """The record of a put: `late`, it reads the source as late as it may."""
    n = size_of(src)
    fail_if(size_of(dst) < n, TOO_SMALL, size_of(dst), n, address_of(dst), address_of(src))
    nbytes = n * itemsize_of(src)
    target = remote(address_of(dst), nbytes, pe)
    entry = record(pe, 0 if late else nbytes)
    it = as_pending(entry)
    it.target, it.nbytes = target, nbytes
    if late:
        it.source, it.borrows = address_of(src), FROM
    else:
        copy_bytes(entry + OWN, address_of(src), nbytes)
    return entry


def _put(op: Op) -> Any:
    late = op.nbi

    @device
    def put(given):
        dst, src, pe = given
        return copy_of(dst, src, pe, late)

    return _late(op, put)


def _put_signal(op: Op) -> Any:
    late = op.nbi

    @device
    def put_signal(given):
        dst, src, told, value, how, pe = given
        entry = copy_of(dst, src, pe, late)
        signal(entry, told, value, how, pe)
        return entry

    return _late(op, put_signal)


@device
def a_unit(target, source, nbytes, k, flag, pe):
    entry = record(pe, 0)
    update(entry, target + ll.WORD * k, SET, ll.WORD, ll.unit_at(source, nbytes, k, flag))
    return entry


@device
def a_line(target, source, nbytes, k, flag, pe):
    """First the data, then the flag, as in a put with a signal."""
    entry, line = record(pe, ll.LINE_DATA), target + ll.LINE_BYTES * k
    it = as_pending(entry)
    it.target, it.nbytes = line, ll.LINE_DATA
    ll.fill_line(entry + OWN, source, nbytes, k)
    update(entry, line + ll.LINE_DATA, SET, ll.WORD, flag)
    return entry


def _put_ll(op: Op) -> Any:
    """Each unit or line for itself: they arrive in any order."""
    name, scope = op.base.removeprefix("put_"), SCOPES.index(op.scope)
    number, target_of = ll.PROTOCOLS[name].number, ll.TARGETS[name]
    one = {"ll": a_unit, "ll128": a_line}[name]

    def put_ll(dst, src, flag, pe):
        nbytes, word = size_of(src) * itemsize_of(src), ll.flag_word(flag)
        target, source = target_of(dst, nbytes, pe), address_of(src)
        for k in range(number(nbytes)):
            commit(one(target, source, nbytes, k, word, pe), scope)

    return put_ll


def _reduce_ll(op: Op) -> Any:
    def of(body: Any) -> Any:
        call = device(body)

        def reduce_ll(dst, src, flag):
            call(dst, src, flag)
            forget(address_of(dst), size_of(dst) * itemsize_of(dst))

        return reduce_ll

    return {how: of(body) for how, body in ll.REDUCING[op.base].items()}


def _signal_op(op: Op) -> Any:
    @device
    def signal_op(given):
        told, value, how, pe = given
        entry = record(pe, 0)
        signal(entry, told, value, how, pe)
        return entry

    return _late(op, signal_op)


def _g(op: Op) -> Any:
    def g(src, pe):
        return load_element(src, as_seen(remote_element(src, pe), itemsize_of(src)))

    return g


@device
def source_of(dst, src, pe):
    """Where a get reads, and how many bytes."""
    n, have = size_of(dst), size_of(src)
    fail_if(have < n, TOO_SMALL, n, have, address_of(dst), address_of(src))
    nbytes = n * itemsize_of(dst)
    return remote(address_of(src), nbytes, pe), nbytes


def _get(op: Op) -> Any:
    @device
    def late(given):
        dst, src, pe = given
        source, nbytes = source_of(dst, src, pe)
        entry = record(pe, 0)
        it = as_pending(entry)
        it.target, it.source, it.nbytes = address_of(dst), source, nbytes
        it.borrows = TO
        return entry

    def get(dst, src, pe):
        source, nbytes = source_of(dst, src, pe)
        copy_as_seen(address_of(dst), source, nbytes)

    return _late(op, late) if op.nbi else get


def _iget(op: Op) -> Any:
    def iget(dst, src, dst_stride, src_stride, nelems, pe):
        check_strides(dst, src, dst_stride, src_stride, nelems)
        size, target = itemsize_of(dst), address_of(dst)
        source = remote(address_of(src), reach(src_stride, nelems) * size, pe)
        for i in range(nelems):
            at = target + i * dst_stride * size
            copy_element(dst, at, as_seen(source + i * src_stride * size, size))
            forget(at, size)

    return iget


@device
def region(world):
    """Address of PE 0's segment."""
    return as_world(world).heap - as_world(world).my_pe * as_world(world).stride


@device
def stored_to_peer(address, nbytes, value_at, world, scope):
    """Let a store to another PE's memory be pending; `scope`: of whose call it is, see SCOPES."""
    force(address, nbytes, 1)
    entry = record((address - region(world)) // as_world(world).stride, nbytes)
    it = as_pending(entry)
    it.target, it.plain = address, 1
    copy_bytes(entry + OWN, value_at, nbytes)
    commit(entry, scope)


@cache
def _copying(scope: int) -> Any:
    """A copy to memory of another PE: as a plain store to it."""

    @device
    def copy(target, source, nbytes):
        world = user_word()
        pe = (target - region(world)) // as_world(world).stride
        if 0 <= pe < as_world(world).n_pes and pe != as_world(world).my_pe:
            stored_to_peer(target, nbytes, source, world, scope)
        else:
            copy_bytes(target, source, nbytes)
            forget(target, nbytes)

    return copy


def _copy(op: Op) -> Any:
    copy_to = _copying(SCOPES.index(op.scope))

    def copy(dst, src):
        n = size_of(src)
        fail_if(size_of(dst) < n, TOO_SMALL, size_of(dst), n, address_of(dst), address_of(src))
        copy_to(address_of(dst), address_of(src), n * itemsize_of(src))

    return copy


def _copy_rows(op: Op) -> Any:
    return weighing.copying_rows(_copying(SCOPES.index(op.scope)))


def _multimem_store(op: Op) -> Any:
    """To each member, the caller too, as a plain store to another PE's memory."""
    scope = SCOPES.index(op.scope)

    @device
    def store(target, source, nbytes):
        stored_to_peer(target, nbytes, source, user_word(), scope)

    return multicast.storing(store)


def _multimem_reduce(op: Op) -> Any:
    return combining.reducing(as_seen, forget)


def _iput(op: Op) -> Any:
    scope = SCOPES.index(op.scope)

    def iput(dst, src, dst_stride, src_stride, nelems, pe):
        check_strides(dst, src, dst_stride, src_stride, nelems)
        size = itemsize_of(dst)
        target = remote(address_of(dst), reach(dst_stride, nelems) * size, pe)
        entry = record(pe, nelems * size)
        it = as_pending(entry)
        it.target, it.nbytes, it.count = target, size, nelems
        it.target_step, it.source_step = dst_stride * size, size
        copy_strided(dst, entry + OWN, 1, address_of(src), src_stride, nelems)
        commit(entry, scope)

    return iput


# --- copies to shared memory: lists of those that are late, the last one first. A thread's own is
# from FIBER.poll on; COPY.nbytes is 0 where a group ends. Copies in bulk are in the block's, from
# BLOCK.late on, each with its mbarrier. What nobody waits for is never performed.


@device
def begun(following, target, source, nbytes, barrier):
    """A copy, before others in a list, or the end of a group."""
    entry = malloc(COPY_BYTES)
    it = as_copy(entry)
    it.next, it.target, it.source, it.nbytes = following, target, source, nbytes
    it.barrier = barrier
    return entry


@device
def enlist(target, source, nbytes):
    """Put a copy into the calling thread's list, or the end of a group."""
    fiber = as_fiber(fiber_word())
    fiber.poll = begun(fiber.poll, target, source, nbytes, 0)


def _copy_async(op: Op) -> Any:
    def copy_async(dst, i, src, j, n):
        target, source, nbytes = piece_of(dst, i, src, j, n)
        force(source, nbytes, 1)
        if fiber_word() != 0 and roll() & 1 == 0:
            enlist(target, source, nbytes)
        else:
            copy_bytes(target, source, nbytes)

    return copy_async


def _copy_async_commit(op: Op) -> Any:
    def copy_async_commit():
        if fiber_word() != 0:
            enlist(0, 0, 0)

    return copy_async_commit


@device
def perform_from(entry):
    """Perform the copies of a list from one on, and free them."""
    while entry != 0:
        it = as_copy(entry)
        following = it.next
        copy_bytes(it.target, it.source, it.nbytes)
        libc_free(entry)
        entry = following


def _copy_async_wait(op: Op) -> Any:
    def copy_async_wait(n):
        fiber = fiber_word()
        before, entry = 0, as_fiber(fiber).poll if fiber != 0 else 0
        ends = n + 1  # of groups, up to the last one that is waited for
        while entry != 0 and ends > 0:
            if as_copy(entry).nbytes == 0:
                ends -= 1
            if ends > 0:
                before, entry = entry, as_copy(entry).next
        if entry != 0:
            if before == 0:
                as_fiber(fiber).poll = 0
            else:
                as_copy(before).next = 0
            perform_from(entry)

    return copy_async_wait


def _copy_bulk(op: Op) -> Any:
    def copy_bulk(dst, i, src, j, n, bars, k):
        target, source, nbytes, barrier = mbarriers.bulk_of(dst, i, src, j, n, bars, k)
        mbarriers.check_copy(target, source, nbytes, barrier)
        force(source, nbytes, 1)
        if fiber_word() != 0 and roll() & 1 == 0:
            block = as_block(as_fiber(fiber_word()).block)
            block.late = begun(block.late, target, source, nbytes, barrier)
        else:
            mbarriers.perform(target, source, nbytes, barrier)

    return copy_bulk


@device
def perform_for(barrier):
    """Perform the late copies that an mbarrier counts."""
    block = as_block(as_fiber(fiber_word()).block)
    before, entry = 0, block.late
    while entry != 0:
        it = as_copy(entry)
        following = it.next
        if it.barrier == barrier:
            if before == 0:
                block.late = following
            else:
                as_copy(before).next = following
            mbarriers.perform(it.target, it.source, it.nbytes, barrier)
            libc_free(entry)
        else:
            before = entry
        entry = following


def _mbarrier_wait(op: Op) -> Any:
    """What the phase waits for is performed by who waits for it."""
    await_phase = device(mbarriers.awaiting(perform_for))

    def mbarrier_wait(bars, i, parity):
        await_phase(mbarriers.element(bars, i), types.intp(parity))

    return mbarrier_wait


def _arrival(op: Op) -> Any:
    """Others may synchronise with who arrives."""
    arrive = device(mbarriers.BODIES[op.base])

    @device
    def arrival(given):
        released()
        arrive(*given)

    return with_signature(op.base, op.params, arrival)


# --- order


@kept
def released():
    """The calling thread does what others may synchronise with."""
    fiber = fiber_word()
    if fiber != 0:
        as_fiber(fiber).clock += 1 << SYNCED


@device
def complete(what, pe, qps):
    """Wait until what the calling thread's quiet covers has been performed."""
    full_fence()
    released()
    own, fiber = as_world(user_word()).weak, fiber_word()
    left, asked = as_weak(own).left, (own, fiber, as_weak(own).calls, pe, qps)
    if ask(left, asked) != 0:
        begin_wait(what, 0, 0, 0, 0)
        while ask(left, asked) != 0:
            pause()
        end_wait()


@device
def put_in_order(pe, qps):
    """Order what the calling thread's fence covers."""
    release_fence()
    own = as_world(user_word()).weak
    ask(as_weak(own).fence, (own, fiber_word(), pe, qps))
    released()


@device
def set_of(qps):
    """The set of the queue pairs in an array."""
    check_qps(address_of(qps), size_of(qps))
    found = 0
    for k in range(size_of(qps)):
        qp = load_element(qps, address_of(qps) + k * itemsize_of(qps))
        found |= 1 << (qp & 63)
    return found


def _fence(op: Op) -> Any:
    def fence():
        put_in_order(-1, DEFAULT_QPS)

    def qp_fence(pe, qps):
        check_pe(pe)
        put_in_order(pe, set_of(qps))

    return qp_fence if op.params else fence


def _flush(op: Op) -> Any:
    def flush():
        own = as_world(user_word()).weak
        ask(as_weak(own).flush, (own, fiber_word()))

    return flush


def _quiet(op: Op) -> Any:
    name = op.name

    def quiet():
        complete(text_word(name), -1, ALL_QPS)

    def qp_quiet(pe, qps):
        check_pe(pe)
        complete(text_word(name), pe, set_of(qps))

    return qp_quiet if op.params else quiet


def _barrier(op: Op) -> Any:
    call = device(collectives.BODIES[op.base])
    name = op.base

    def barrier(team):
        complete(text_word(name), -1, ALL_QPS)
        call(team)

    def barrier_all():
        complete(text_word(name), -1, ALL_QPS)
        call()

    return barrier if "team" in op.params else barrier_all


# --- calls of a warp or block


def by_any_thread(op: Op, body: Any) -> tuple[Any, Any] | None:
    """What a thread does before it arrives at a call of its group, and the last one when all have.

    The first thread to call acts for all before the others have called, or the last one, as the
    dice say: what threads have written without a barrier since is not included, or is overwritten.
    Calls that order something, or that PEs meet in, count for all threads: so they wait for them.
    """
    if op.facts.orders or op.facts.meets:
        return None

    @device
    def first(group, given):
        it = as_group(group)
        if it.acted == 0:
            it.acted = 1 + (roll() & 1)
            if it.acted == AHEAD:
                body(given)

    @device
    def last(group, given):
        if as_group(group).acted != AHEAD:
            body(given)
        as_group(group).acted = 0

    return first, last


# --- waits


@device
def roll():
    """A random number, 0 or more, of ROLLED bits; 1 in a launch of numba.cuda, without dice."""
    log = as_launch(launch_word()).log
    if log == 0:
        return 1
    dice = as_line(log)
    dice.value = dice.value * 6364136223846793005 + 1442695040888963407
    return (dice.value >> 40) & ((1 << ROLLED) - 1)


look_anywhere = waits.looking_for_any(roll)


def _any(op: Op) -> Any:
    make = waits.waiting if op.waits else waits.looking_once
    return make(op.base, look_anywhere)


ANY = [f"{what}_any{form}" for what in ("wait_until", "test") for form in ("", "_vector")]
BODIES: dict[str, Callable[[Op], Any]] = {
    "p": _p, "put": _put, "put_signal": _put_signal, "signal_op": _signal_op, "iput": _iput,
    "g": _g, "get": _get, "iget": _iget, "copy": _copy, "put_ll": _put_ll, "reduce_ll": _reduce_ll,
    "put_ll128": _put_ll, "reduce_ll128": _reduce_ll,
    "copy_rows": _copy_rows, "copy_async": _copy_async, "copy_async_commit": _copy_async_commit,
    "copy_async_wait": _copy_async_wait, "copy_bulk": _copy_bulk, "mbarrier_wait": _mbarrier_wait,
    "mbarrier_arrive": _arrival, "mbarrier_arrive_and_expect_tx": _arrival,
    "multimem_reduce": _multimem_reduce, "multimem_store": _multimem_store,
    "fence": _fence, "flush": _flush, "quiet": _quiet, "qp_fence": _fence, "qp_quiet": _quiet,
    "barrier": _barrier, "barrier_all": _barrier, **dict.fromkeys(atomics.BODIES, _atomic),
    **dict.fromkeys(ANY, _any),
}  # fmt: skip


def body_of(op: Op) -> Any:
    """The meaning of a row, or None if it is what it is without weak memory."""
    make = BODIES.get(op.plain)
    return make(op) if make is not None else None
