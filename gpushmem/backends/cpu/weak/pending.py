"""Operations that have been called and are not performed yet.

While memory is weak, an operation that need not be complete when its call returns is *pending*: it
is performed at once, or it is held back, as its hash says. The hash is made of the seed, and of the
PE, launch, thread and call, so the same operations are held back whenever a run has the same seed.

What is held back is performed as late as it can be: when no PE can go on without it. A PE is idle
when each of its launches has had a turn in which no thread moved, and its host waits; `turns`, on
the board, counts how often. When all PEs have been idle twice since anything was last performed,
every thread that could see it has looked, and waits for something else. Then one operation of
those that may come next is performed, or some, and the PEs go on. A `quiet` waits for that, too.
After PATIENCE they are in any case: a host may wait for something that nobody here knows of.

Which may come next: of two operations to one PE with a `fence` between, the first. `fence` numbers
the fences of a PE; it gives its number to the pending operations that it covers, and an operation
knows how many fences were before it. A fence is of the default queue pair, or of some and a PE: it
covers operations on these, and stores, and orders them before what comes later on the same. Sets of
queue pairs have a bit for each number modulo 64.

A fence, flush or quiet covers the operations of the calling thread and of its warp, those of whole
blocks, and those of other threads and warps that have since done what others can synchronise with
(`synced`); who has not cannot have synchronised with the caller.

All here is compiled once, as C functions whose addresses kernels find in the WEAK record; a lock
serialises the launches of a PE.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from gpushmem.artifacts.gpu_model import LANES
from gpushmem.backends.cpu.operations.dynamic_updates import NOTHING, copy_piece, update_word
from gpushmem.backends.cpu.sync.world import WORLD
from gpushmem.job.board import PE
from gpushmem.native.c_function import c_function
from gpushmem.native.internal import internal
from gpushmem.native.lock import lock, unlock
from gpushmem.native.memory import (
    atomic_add_word,
    copy_bytes,
    full_fence,
    i64,
    intrinsic,
    libc_free,
    load_acquire,
    malloc,
    monotonic_ns,
)
from gpushmem.native.structs import offset, view
from gpushmem.ops import QP_ANY, QP_DEFAULT
from gpushmem.simt.layout import BLOCK, FIBER, GROUP, LAUNCH, WARP

__all__ = [
    "PENDING", "WEAK", "as_pending", "as_weak", "ask", "functions",
]  # fmt: skip

WEAK = np.dtype(
    [
        ("lock", "i8"),
        ("seed", "i8"),  # of this PE
        ("pes", "i8"),  # address of the board's records of PEs
        ("performed", "i8"),  # ... and of its count of operations performed
        ("n_pes", "i8"),
        ("my_pe", "i8"),
        ("first", "i8"),  # list of PENDING, in the order of their calls
        ("last", "i8"),
        ("n", "i8"),
        ("calls", "i8"),  # operations so far
        ("fences", "i8"),
        # Who takes part in this PE's turns: launches, and the host while it does not wait.
        ("active", "i8"),
        ("stepped", "i8"),  # how many of them have been idle
        ("generation", "i8"),  # ... in this turn
        # When something was last performed, as far as this PE knows.
        ("known", "i8"),
        ("since", "i8"),
        ("turns", "i8"),  # address of the turns of all PEs at that time
        ("host", "i8"),  # the last generation in which the host polled
        ("naps", "i8"),  # that threads have taken
        ("heap", "i8"),  # address of this PE's segment, and its end
        ("heap_end", "i8"),
        # Addresses of the functions below.
        ("commit", "i8"),
        ("left", "i8"),
        ("fence", "i8"),
        ("flush", "i8"),
        ("force", "i8"),
        ("catch_up", "i8"),
        ("settle", "i8"),
        ("nap", "i8"),
    ],
    align=True,
)
PENDING = np.dtype(
    [
        ("next", "i8"),
        ("pe", "i8"),
        # A copy of `count` pieces, `nbytes` each, steps apart. Nothing: `nbytes` is 0.
        ("target", "i8"),
        ("source", "i8"),
        ("nbytes", "i8"),
        ("count", "i8"),
        ("target_step", "i8"),
        ("source_step", "i8"),
        # Then an update of `width` bytes.
        ("what", "i8"),  # of `updates`
        ("address", "i8"),
        ("width", "i8"),
        ("value", "i8"),
        ("qp", "i8"),  # the queue pair
        ("borrows", "i8"),  # the user's memory: FROM, of `put_nbi`, or TO, of `get_nbi`
        ("data", "i8"),  # memory to be freed with it; 0: none
        ("plain", "i8"),  # a store through `peer_array`
        ("call", "i8"),  # number of the operation
        ("hash", "i8"),
        ("before", "i8"),  # fences before it
        ("fenced", "i8"),  # number of the first fence that covers it; 0: none has
        ("qps", "i8"),  # what is on these queue pairs comes after it, then
        ("scope", "i8"),  # who called it: a thread, a warp, a block
        ("fiber", "i8"),  # ... a thread of it; 0: covered by all
        ("thread", "i8"),  # ... for this thread
        ("clock", "i8"),  # ... they were `synced` so often
        ("launch", "i8"),
    ],
    align=True,
)
# What a launch remembers of loads, see `loads`.
LINE = np.dtype([(name, "i8") for name in ("address", "epoch", "uses", "value", "left", "nap")])
FROM, TO = 1, 2
ALL_QPS, DEFAULT_QPS = -1, 1 << QP_DEFAULT  # sets of queue pairs
ONE_THREAD, WHOLE_BLOCK = 0, 2  # `scope`; 1: a warp
OWN = PENDING.itemsize  # where the data of an operation are that has copied them
MOST = 256  # operations held back at once; what is more is performed at once
PATIENCE = 250_000_000  # nanoseconds
NAP, LONG_NAP = 500_000, 10_000_000
SYNCED = 32  # bits of a clock below what others could synchronise with
CALLS = (1 << SYNCED) - 1

as_weak, as_pending, as_fiber, as_launch = map(view, (WEAK, PENDING, FIBER, LAUNCH))
as_line = view(LINE)
as_group, as_warp, ALL = view(GROUP), view(WARP), offset(BLOCK, "all")
as_pe, as_world = view(PE), view(WORLD)
PE_BYTES = PE.itemsize
word = types.intp
as_word = view(np.dtype([("v", "i8")]))


@intrinsic
def ask(typingctx: Any, function: Any, words: Any) -> Any:
    """Call a C function of words at an address; `words` is a tuple of them."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        given = [builder.extract_value(args[1], k) for k in range(len(words))]
        signature = ir.FunctionType(i64, [i64] * len(given))
        return builder.call(builder.inttoptr(args[0], signature.as_pointer()), given)

    return types.intp(types.intp, types.UniTuple(types.intp, len(words))), codegen


# --- the list


@internal
def thread_number(fiber: int) -> int:
    """The number of a fiber's thread in its launch."""
    return int(as_fiber(fiber).thread.number)


@internal
def synced(fiber: int) -> int:
    """How often a thread has done what others can synchronise with."""
    block = as_group(as_fiber(fiber).block + ALL)
    return (as_fiber(fiber).clock >> SYNCED) + block.generation


@internal
def all_synced(scope: int, fiber: int) -> int:
    """The same of all lanes of a thread's warp, and which live, in one number; or of it alone."""
    if scope == ONE_THREAD:
        return synced(fiber)
    warp = as_warp(as_fiber(fiber).warp)
    number = int(warp.living) << (SYNCED - 1)
    for lane in range(LANES):
        if warp.living >> lane & 1 != 0:
            number += synced(warp.fibers[lane])
    return number


@internal
def covered(entry: int, fiber: int) -> bool:
    """Whether a fence, flush or quiet of a thread covers an operation."""
    it = as_pending(entry)
    if it.fiber == 0 or thread_number(it.fiber) != it.thread:  # that thread has ended
        return True
    if fiber != 0 and it.scope != ONE_THREAD and as_fiber(fiber).warp == as_fiber(it.fiber).warp:
        return True
    return it.fiber == fiber or all_synced(it.scope, it.fiber) != it.clock


@internal
def is_on(qps: int, qp: int) -> bool:
    """Whether a queue pair is one of a set; what uses any of all belongs to none."""
    return qp != QP_ANY and qps >> (qp & 63) & 1 != 0


@internal
def is_of(entry: int, pe: int, qps: int) -> bool:
    """Whether an operation is to a PE, -1: to any, and on some queue pairs; stores are on all."""
    it = as_pending(entry)
    return pe in (-1, it.pe) and (qps == ALL_QPS or it.plain != 0 or is_on(qps, it.qp))


@internal
def predecessor(weak: int, entry: int) -> int:
    """A pending operation that must be performed before this one; 0 if there is none."""
    it = as_pending(entry)
    other = as_weak(weak).first
    while other != 0:
        that = as_pending(other)
        if that.call >= it.call:
            return 0
        if that.pe == it.pe and 0 != that.fenced <= it.before and is_on(that.qps, it.qp):
            return other
        other = that.next
    return 0


@internal
def perform(weak: int, entry: int) -> None:
    """Do what an operation does."""
    it = as_pending(entry)
    if it.nbytes > 0:
        target, source = it.target, it.source
        for _ in range(it.count):
            copy_piece(target, source, it.nbytes)
            target += it.target_step
            source += it.source_step
        full_fence()
    if it.what != NOTHING:
        update_word(it.address, it.what, it.width, it.value, 0)
    atomic_add_word(as_weak(weak).performed, 1)


@internal
def discard(entry: int) -> None:
    if as_pending(entry).data != 0:
        libc_free(as_pending(entry).data)
    libc_free(entry)


@internal
def take_out(weak: int, entry: int) -> None:
    """Take a pending operation out of the list, and free it."""
    w = as_weak(weak)
    before, at = 0, w.first
    while at != entry:
        before, at = at, as_pending(at).next
    following = as_pending(entry).next
    if before == 0:
        w.first = following
    else:
        as_pending(before).next = following
    if w.last == entry:
        w.last = before
    w.n -= 1
    discard(entry)


@internal
def finish(weak: int, entry: int) -> None:
    """Perform a pending operation now, and before it all that must come before it."""
    first = predecessor(weak, entry)
    while first != 0:
        second = predecessor(weak, first)
        while second != 0:
            first, second = second, predecessor(weak, second)
        perform(weak, first)
        take_out(weak, first)
        first = predecessor(weak, entry)
    perform(weak, entry)
    take_out(weak, entry)


@internal
def next_one(weak: int) -> int:
    """The operation that is performed next: of those that may, the one of the smallest hash."""
    found, at = 0, as_weak(weak).first
    while at != 0:
        may = predecessor(weak, at) == 0
        if may and (found == 0 or as_pending(at).hash < as_pending(found).hash):
            found = at
        at = as_pending(at).next
    return found


# --- calls of kernels


@internal
def mixed(number: int) -> int:
    """A hash of a number, 0 or more (splitmix64)."""
    number += -7046029254386353131
    number = (number ^ ((number >> 30) & 0x3FFFFFFFF)) * -4658895280553007687
    number = (number ^ ((number >> 27) & 0x1FFFFFFFFF)) * -7723592293110705685
    return (number ^ ((number >> 31) & 0x1FFFFFFFF)) & 0x7FFFFFFFFFFFFFFF


@internal
def hash_of(seed: int, launch: int, fiber: int) -> int:
    """A hash of a launch, a thread, and how many operations that has called."""
    number = mixed(seed + as_launch(launch).number)
    if fiber != 0:
        number = mixed(number + thread_number(fiber))
        number = mixed(number + (as_fiber(fiber).clock & CALLS))
    return number


@internal
def rarity(n: int) -> int:
    """One in how many operations is held back while `n` are."""
    return 2 if n < 2 else 4 if n < 4 else 16 if n < 16 else 64


def commit(weak: int, entry: int, fiber: int, launch: int, scope: int) -> int:
    """An operation has been called, by a thread, a warp or a block: perform it, or hold it back."""
    w, it = as_weak(weak), as_pending(entry)
    lock(weak)
    w.calls += 1
    it.call, it.before, it.fenced, it.qps, it.next = w.calls, w.fences, 0, 0, 0
    it.launch, it.scope, it.fiber, it.clock = launch, scope, 0, 0
    if scope != WHOLE_BLOCK and fiber != 0:
        it.fiber, it.thread, it.clock = fiber, thread_number(fiber), all_synced(scope, fiber)
    it.hash = hash_of(w.seed + (0 if fiber != 0 else w.calls), launch, fiber)
    late = it.hash % rarity(w.n) == 0 or predecessor(weak, entry) != 0
    if late and w.n < MOST:
        append(weak, entry)
    else:
        first = predecessor(weak, entry)
        while first != 0:
            finish(weak, first)
            first = predecessor(weak, entry)
        perform(weak, entry)
        discard(entry)
    unlock(weak)
    return 0


@internal
def append(weak: int, entry: int) -> None:
    """Put an operation at the end of the list."""
    w = as_weak(weak)
    if w.first == 0:
        w.first = entry
    else:
        as_pending(w.last).next = entry
    w.last = entry
    w.n += 1
    refresh(weak)


@internal
def refresh(weak: int) -> None:
    """Begin to wait anew, for the PEs' turns and for PATIENCE."""
    w = as_weak(weak)
    w.known, w.since = load_acquire(w.performed), monotonic_ns()
    watch(weak)


@internal
def watch(weak: int) -> None:
    """Begin to watch the PEs' turns anew."""
    w = as_weak(weak)
    for pe in range(w.n_pes):
        as_word(w.turns + 8 * pe).v = as_pe(w.pes + pe * PE_BYTES).turns


def left(weak: int, fiber: int, calls: int, pe: int, qps: int) -> int:
    """How many pending operations a quiet of a thread waits for: of the first so many calls."""
    n = 0
    lock(weak)
    at = as_weak(weak).first
    while at != 0:
        if as_pending(at).call <= calls and is_of(at, pe, qps) and covered(at, fiber):
            n += 1
        at = as_pending(at).next
    unlock(weak)
    return n


def fence(weak: int, fiber: int, pe: int, qps: int) -> int:
    """Order what a thread's fence covers before what is called from now on; but gets."""
    lock(weak)
    w = as_weak(weak)
    w.fences += 1
    at = w.first
    while at != 0:
        if is_of(at, pe, qps) and covered(at, fiber) and as_pending(at).borrows != TO:
            if as_pending(at).fenced == 0:
                as_pending(at).fenced = w.fences
            as_pending(at).qps |= qps
        at = as_pending(at).next
    unlock(weak)
    return 0


def settle(weak: int, fiber: int) -> int:
    """Perform the plain stores that a thread's system-wide fence covers.

    What the thread does next may be seen at once.
    """
    lock(weak)
    w = as_weak(weak)
    at = w.first
    while at != 0:
        if as_pending(at).plain != 0 and covered(at, fiber):
            finish(weak, at)
            at = w.first  # the list may have changed
        else:
            at = as_pending(at).next
    unlock(weak)
    return 0


@internal
def keep_source(entry: int) -> None:
    """Read what an operation would take from the user's memory later."""
    it = as_pending(entry)
    data = malloc(it.nbytes)
    copy_bytes(data, it.source, it.nbytes)
    it.source, it.data, it.borrows = data, data, 0


def flush(weak: int, fiber: int) -> int:
    """Read the sources of what a thread's flush covers."""
    lock(weak)
    at = as_weak(weak).first
    while at != 0:
        following = as_pending(at).next
        if as_pending(at).borrows == FROM and covered(at, fiber):
            keep_source(at)
        at = following
    unlock(weak)
    return 0


def force(weak: int, start: int, end: int, plain: int) -> int:
    """Perform what is pending for the addresses from `start` to `end`; if asked, stores only."""
    lock(weak)
    w = as_weak(weak)
    at = w.first
    while at != 0:
        it = as_pending(at)
        low, high = it.target, it.target + (it.count - 1) * it.target_step + it.nbytes
        meets = it.nbytes > 0 and low < end and start < high
        if it.what != NOTHING and it.address < end and start < it.address + it.width:
            meets = True
        if meets and (plain == 0 or it.plain != 0):
            finish(weak, at)
            at = w.first  # the list may have changed
        else:
            at = it.next
    unlock(weak)
    return 0


def catch_up(weak: int, pe: int) -> int:
    """Perform what fences order before an operation to a PE that is performed at once."""
    lock(weak)
    w = as_weak(weak)
    at = w.first
    while at != 0:
        it = as_pending(at)
        if it.pe == pe and it.fenced != 0 and is_on(it.qps, QP_DEFAULT):
            finish(weak, at)
            at = w.first  # the list may have changed
        else:
            at = it.next
    unlock(weak)
    return 0


# --- turns


@internal
def turned(weak: int) -> None:
    """Count a turn in which all of the PE was idle."""
    w = as_weak(weak)
    w.generation += 1
    w.stepped = 0
    as_pe(w.pes + w.my_pe * PE_BYTES).turns += 1


@internal
def stepped(weak: int) -> None:
    """One of those who take part in this PE's turns has been idle."""
    w = as_weak(weak)
    w.stepped += 1
    if w.stepped >= w.active:
        turned(weak)


@internal
def all_idle(weak: int, times: int, but: int) -> bool:
    """Whether all PEs but one have been idle so often since anything was last performed."""
    w = as_weak(weak)
    for pe in range(w.n_pes):
        record = as_pe(w.pes + pe * PE_BYTES)
        lives = record.ended == 0 and record.initialised == 1 and pe != but
        if lives and record.turns < as_word(w.turns + 8 * pe).v + times:
            return False
    return True


@internal
def look(weak: int) -> None:
    """Perform the next operation if nobody can go on without it, or after PATIENCE."""
    w = as_weak(weak)
    if w.first == 0:
        return
    if load_acquire(w.performed) != w.known:
        refresh(weak)
    elif all_idle(weak, 2, -1) or monotonic_ns() - w.since > PATIENCE:
        again = True
        while again and w.first != 0:
            chosen = next_one(weak)
            again = mixed(as_pending(chosen).hash) & 1 == 0
            finish(weak, chosen)
        refresh(weak)


def nap(weak: int, began: int) -> int:
    """Whether a thread that began to nap at some time, now if that is 0, goes on to."""
    lock(weak)
    if began == 0:
        watch(weak)  # PATIENCE goes on: who polls naps again and again
    others = all_idle(weak, 8, as_weak(weak).my_pe)
    unlock(weak)
    slept = monotonic_ns() - began
    return int(began == 0 or slept < NAP or (slept < LONG_NAP and not others))


def idle(launch: int) -> None:
    """A launch has had a turn in which no thread moved: it is idle, if none naps."""
    weak = as_world(as_launch(launch).user).weak
    lock(weak)
    naps = as_line(as_launch(launch).log).nap != 0
    if not naps and as_launch(launch).stepped != as_weak(weak).generation:
        as_launch(launch).stepped = as_weak(weak).generation
        stepped(weak)
    look(weak)
    unlock(weak)


def leave(launch: int) -> None:
    """A launch has ended, whose memory is about to go."""
    weak = as_world(as_launch(launch).user).weak
    w = as_weak(weak)
    lock(weak)
    at = w.first
    while at != 0:
        it, following = as_pending(at), as_pending(at).next
        if it.launch == launch:
            it.launch = it.fiber = 0
            if it.borrows == FROM and not w.heap <= it.source < w.heap_end:
                keep_source(at)
            elif it.borrows == TO and not w.heap <= it.target < w.heap_end:
                finish(weak, at)
                following = w.first
        at = following
    unlock(weak)


def join(weak: int, number: int) -> int:
    """So many more take part in this PE's turns."""
    lock(weak)
    w = as_weak(weak)
    w.active += number
    w.stepped = 0
    w.generation += 1
    unlock(weak)
    return 0


def host_idle(weak: int, waits: int) -> int:
    """The host waits and sees nothing new, or polls. Returns how many operations are pending."""
    lock(weak)
    w = as_weak(weak)
    if waits and w.active == 0:
        turned(weak)
    elif not waits and w.host != w.generation:
        w.host = w.generation
        stepped(weak)
    look(weak)
    n = w.n
    unlock(weak)
    return n


def late(weak: int) -> int:
    """Perform the next operation if it has waited for longer than PATIENCE."""
    lock(weak)
    w = as_weak(weak)
    while w.first != 0 and monotonic_ns() - w.since > PATIENCE:
        finish(weak, next_one(weak))
    unlock(weak)
    return 0


# With the number of their words.
OF_KERNELS: dict[str, tuple[Any, int]] = {
    "commit": (commit, 5), "left": (left, 5), "fence": (fence, 4), "flush": (flush, 2),
    "settle": (settle, 2), "force": (force, 4),
    "catch_up": (catch_up, 2), "nap": (nap, 2),
}  # fmt: skip
OF_HOSTS = {"join": (join, 2), "host_idle": (host_idle, 2), "late": (late, 1)}
OF_LAUNCHES = {"idle": idle, "leave": leave}


@cache
def functions() -> dict[str, Any]:
    """The C functions by name, for Python to call; as "name address", where they are."""
    made: dict[str, Any] = {}
    for name, (function, n) in (OF_KERNELS | OF_HOSTS).items():
        compiled = c_function(word(*[word] * n), function)
        made[name] = compiled.callable(ctypes.c_int64, *[ctypes.c_int64] * n)
        made[f"{name} address"] = compiled.address
    for name, leaf in OF_LAUNCHES.items():
        compiled = c_function(types.void(word), leaf)
        _keep.append(compiled)
        made[f"{name} address"] = compiled.address
    return made


_keep: list[Any] = []  # keep the code alive
