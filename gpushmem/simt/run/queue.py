"""The queue of a stream: launches that have been prepared, run one after the other in native code.

Python puts ITEMs at one end, and the stream's worker, in `drain`, runs them from the other. It is
back in Python only for what a launch leaves to do there (see `drain`), and asleep when there is
nothing to run. Who waits for the queue waits for its count `done`. Each run of a launch begins with
a copy of its LAUNCH, in the queue's RUN, so a launch may be in any number of queues, and often in
one.

One thread at a time puts, the one that has the GIL; one takes. Sleeping threads are woken by
futexes: who goes to sleep says so, and then looks once more; who brings something says so, and then
looks whether somebody sleeps.
"""

from __future__ import annotations

import ctypes
import itertools
import os
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
from numba import types

from gpushmem.artifacts.argument_packing import address_of
from gpushmem.native.c_function import c_function
from gpushmem.native.internal import internal
from gpushmem.native.lock import lock, unlock
from gpushmem.native.memory import (
    atomic_add_word,
    call_address,
    compare_swap_word,
    copy_bytes,
    full_fence,
    libc_free,
    load_acquire,
    malloc,
    monotonic_ns,
    sched_yield,
    store_release,
)
from gpushmem.native.structs import offset, struct, view
from gpushmem.simt.base import embedder
from gpushmem.simt.base.layout import LAUNCH, POOL
from gpushmem.simt.run.scheduler import NO_MEMORY

__all__ = [
    "AT", "CALL", "COPY", "DONE", "END", "LAUNCHES", "NAME_BYTES", "ONE", "PUT", "SHARE", "SKIP",
    "TAKEN", "WAIT", "native", "new_queue", "new_run", "of_process",
]  # fmt: skip

# Kinds of ITEM.
LAUNCHES = 1  # run the launches of a list
CALL = 2  # for Python
WAIT = 3  # for another queue
END = 4  # of the queue
COPY = 6  # of memory
ONE = 5  # for `put`: LAUNCHES, the LAUNCH and arguments of one in the place of a list's
# What `drain` and `perform` return besides CALL and END: Python's turn, with a launch.
OVER, LOOK, SHARE = 0, 7, 8

WORTH_SHARING = 300_000  # nanoseconds
ALONE_NS = 100_000_000
SPINS, YIELDS = 64, 16  # looks before a thread sleeps, and how often it yields its core between
NEVER = 2**62
NAME_BYTES, SHOWN = 120, 40  # of a kernel's name: in a LAUNCH, for the embedder
FUTEX, FUTEX_WAIT, FUTEX_WAKE, EVERYONE = 202, 128, 129, 2**31 - 1  # x86-64; private futexes


# What all runs of a process have in common.
COMMON = struct(
    ("lock", "i8"),
    ("latest", "i8"),  # RUN that has begun last, of those that have not ended
    ("told", "i8"),  # where the address is at which the embedder wants its name, or 0
    ("pools", "i8"),  # list of KEPT that no launch uses
    ("bell", "i8"),  # futex of the threads that help
    ("dozes", "i8"),  # whether some sleep there
    ("work", "i8"),  # counts launches that they may help with
    ("worth", "i8"),  # nanoseconds of work from which on a second core pays
    ("alone_ns", "i8"),  # how long none helps after a core turned out to be `crowded` ...
    ("alone_until", "i8"),  # ... and until when
    # C functions of a RUN's address, 0: none; for an embedder, with a word of its own:
    ("began", "i8"),
    ("ended", "i8"),
    ("block_ended", "i8"),  # for LAUNCHes, and the embedder's own word
    ("own", "i8"),
)
KEPT = struct(("next", "i8"), ("pool", POOL))
RUN = struct(
    # A launch that runs.
    ("common", "i8"),
    ("number", "i8"),  # of the run; counts those in this place
    ("current", "i8"),  # the same, or 0 when it has ended
    ("next", "i8"),  # RUN that began before it
    ("prev", "i8"),
    ("template", "i8"),  # the LAUNCH of which `launch` is a copy
    ("stream", "i8"),  # number of its queue, from 1; 0: it is in none
    ("launch", LAUNCH),
)
ITEM = struct(
    ("next", "i8"),
    ("kind", "i8"),
    # Address of a list of (LAUNCH, arguments), or of (destination, source); the awaited QUEUE.
    ("what", "i8"),
    ("count", "i8"),  # length of the list; bytes to be copied; how much of the QUEUE is to be done
    ("own", "i8", 2),  # a list of one launch
    ("keep", "i8"),  # object of Python's that it needs until it is done
)
QUEUE = struct(
    ("last", "i8"),  # ITEM, put last
    ("put", "i8"),  # how many have been put
    ("oldest", "i8"),  # ITEM, of those whose memory has not been given back
    ("bell", "i8"),  # futex of the worker
    ("asleep", "i8"),  # whether the worker waits for it
    ("apart", "i8", 7),  # what the worker writes is on other cache lines
    ("first", "i8"),  # ITEM, taken last
    ("taken", "i8"),  # how many have been taken
    ("done", "i8"),  # ... and are done
    ("at", "i8"),  # how much of the item in hand is done
    ("wanted", "i8"),  # the smallest `done` that somebody waits for
    ("rung", "i8"),  # futex of those
    ("skip", "i8"),  # a launch has failed: do nothing more, until the host has heard of it
    ("run", RUN),
    ("empty", ITEM),  # stands for the last that was taken, before the first
)

as_common, as_kept, as_run = view(COMMON), view(KEPT), view(RUN)
as_item, as_queue, as_launch, as_pool = view(ITEM), view(QUEUE), view(LAUNCH), view(POOL)
LAUNCH_AT, LAUNCH_BYTES, ARGS = offset(RUN, "launch"), LAUNCH.itemsize, offset(LAUNCH, "args")
NUMBER, CURRENT, POOL_AT = offset(RUN, "number"), offset(RUN, "current"), offset(KEPT, "pool")
NAME, OWN, ITEM_BYTES = offset(LAUNCH, "name"), offset(ITEM, "own"), ITEM.itemsize
NEXT, KEPT_BYTES = offset(ITEM, "next"), KEPT.itemsize
HELP_BELL, DOZES, WORK = offset(COMMON, "bell"), offset(COMMON, "dozes"), offset(COMMON, "work")
PUT, BELL, ASLEEP, TAKEN, DONE, WANTED, RUNG, SKIP, RUN_AT, EMPTY, AT, FIRST = (
    offset(QUEUE, field)
    for field in (
        "put",
        "bell",
        "asleep",
        "taken",
        "done",
        "wanted",
        "rung",
        "skip",
        "run",
        "empty",
        "at",
        "first",
    )
)

word = types.intp
system = types.ExternalFunction("syscall", word(*[word] * 7))
# They do nothing for 0 (null).
Py_IncRef = types.ExternalFunction("Py_IncRef", types.void(word))
Py_DecRef = types.ExternalFunction("Py_DecRef", types.void(word))


# --- waiting


@internal
def sleep_at(address: int, seen: int, limit: int) -> None:
    """Sleep until the futex is woken, unless it is not `seen` any more; at most for `limit`.

    `limit` is the address of a timespec, or 0. A signal ends it, too.
    """
    system(FUTEX, address, FUTEX_WAIT, seen & 0xFFFFFFFF, limit, 0, 0)


@internal
def ring(address: int) -> None:
    """Wake all that sleep at the futex; those that are about to will not."""
    store_release(address, load_acquire(address) + 1)
    system(FUTEX, address, FUTEX_WAKE, EVERYONE, 0, 0, 0)


@internal
def await_done(queue_address: int, count: int, limit: int) -> bool:
    """Wait until `count` items of a queue are done, or a signal comes, or for `limit`."""
    done = queue_address + DONE
    for k in range(SPINS * YIELDS):
        if load_acquire(done) >= count:
            return True
        if k % SPINS == 0:
            sched_yield()
    rung = load_acquire(queue_address + RUNG)
    while True:
        wanted = load_acquire(queue_address + WANTED)
        if wanted <= count or wanted == compare_swap_word(queue_address + WANTED, wanted, count):
            break
    full_fence()
    if load_acquire(done) < count:
        sleep_at(queue_address + RUNG, rung, limit)
    return load_acquire(done) >= count


@internal
def finish(queue_address: int) -> None:
    """The item in hand is done: tell who waits for it."""
    queue = as_queue(queue_address)
    done = queue.done + 1
    store_release(queue_address + DONE, done)
    full_fence()
    if load_acquire(queue_address + WANTED) <= done:
        store_release(queue_address + WANTED, NEVER)
        ring(queue_address + RUNG)


@internal
def put(queue_address: int, kind: int, what: int, count: int, keep: int) -> int:
    """Put an item at the end of a queue; returns its number, or 0 if there is no memory.

    With the GIL, so nothing comes between, not even a handler of signals. `keep` is the address of
    an object, which is kept alive until the item is done, see `reclaim`.
    """
    queue = as_queue(queue_address)
    address = malloc(ITEM_BYTES)
    if address == 0:
        return 0
    Py_IncRef(keep)
    item = as_item(address)
    item.next, item.kind, item.what, item.count, item.keep = 0, kind, what, count, keep
    if kind == ONE:
        item.own[0], item.own[1] = what, count
        item.kind, item.what, item.count = LAUNCHES, address + OWN, 1
    before, number = queue.last, queue.put + 1
    queue.last = address
    store_release(queue_address + PUT, number)
    store_release(before + NEXT, address)
    full_fence()
    if load_acquire(queue_address + ASLEEP) != 0:
        store_release(queue_address + ASLEEP, 0)
        ring(queue_address + BELL)
    reclaim(queue_address)
    return number


@internal
def reclaim(queue_address: int) -> None:
    """Let go of the items that are done; with the GIL.

    Objects that end with it may run any code, which may come here again.
    """
    queue = as_queue(queue_address)
    while queue.oldest != load_acquire(queue_address + FIRST):
        address = queue.oldest
        keep = as_item(address).keep
        queue.oldest = as_item(address).next
        if address != queue_address + EMPTY:
            libc_free(address)
        Py_DecRef(keep)
    last = as_item(queue.oldest)
    if load_acquire(queue_address + DONE) == load_acquire(queue_address + TAKEN):
        keep, last.keep = last.keep, 0
        Py_DecRef(keep)


@internal
def in_hand(queue_address: int, nothing: int) -> int:
    """The object of the item in hand, or `nothing`: a new reference; with the GIL."""
    keep = 0
    if load_acquire(queue_address + DONE) != load_acquire(queue_address + TAKEN):
        keep = as_item(load_acquire(queue_address + FIRST)).keep
    if keep == 0:
        keep = nothing
    Py_IncRef(keep)
    return keep


@internal
def take(queue_address: int) -> None:
    """Wait for the next item, and take it in hand."""
    queue = as_queue(queue_address)
    before = queue.first
    following = load_acquire(before + NEXT)
    turns = 0
    while following == 0:
        turns += 1
        if turns < SPINS * YIELDS:
            if turns % SPINS == 0:
                sched_yield()
        else:
            bell = load_acquire(queue_address + BELL)
            store_release(queue_address + ASLEEP, 1)
            full_fence()
            if load_acquire(before + NEXT) == 0:
                sleep_at(queue_address + BELL, bell, 0)
        following = load_acquire(before + NEXT)
    queue.at = 0
    store_release(queue_address + TAKEN, queue.taken + 1)
    store_release(queue_address + FIRST, following)


# --- a run


@internal
def tell(common_address: int) -> None:
    """Say which kernel runs."""
    common = as_common(common_address)
    at = load_acquire(common.told)
    if at == 0:
        return
    if common.latest != 0:
        copy_bytes(at, common.latest + LAUNCH_AT + NAME, SHOWN)
    else:
        for k in range(0, SHOWN, 8):
            store_release(at + k, 0)


@internal
def begin(run_address: int, template: int, args: int, root: int) -> None:
    """Begin a run of the launch that is at `template`, with the arguments at `args`.

    `root` is the LAUNCH of which this is to run a part, or 0.
    """
    run = as_run(run_address)
    launch_address = run_address + LAUNCH_AT
    store_release(run_address + CURRENT, 0)
    copy_bytes(launch_address, template, LAUNCH_BYTES)
    store_release(launch_address + ARGS, args)
    as_launch(launch_address).root = launch_address if root == 0 else root
    common = as_common(run.common)
    run.template = template
    run.number += 1
    lock(run.common)
    run.prev, run.next = 0, common.latest
    if common.latest != 0:
        as_run(common.latest).prev = run_address
    common.latest = run_address
    tell(run.common)
    unlock(run.common)
    if common.began != 0:
        call_address(common.began, run_address)
    store_release(run_address + CURRENT, run.number)


@internal
def end(run_address: int) -> None:
    """A run has ended."""
    run = as_run(run_address)
    common = as_common(run.common)
    store_release(run_address + CURRENT, 0)
    if common.ended != 0:
        call_address(common.ended, run_address)
    lock(run.common)
    if run.next != 0:
        as_run(run.next).prev = run.prev
    if run.prev != 0:
        as_run(run.prev).next = run.next
    else:
        common.latest = run.next
        tell(run.common)
    unlock(run.common)


@internal
def borrow_pool(common_address: int, slot_bytes: int) -> int:
    """Stacks for one run, kept from one with the same needs; a KEPT, or 0: no memory."""
    common = as_common(common_address)
    lock(common_address)
    before, address = 0, common.pools
    while address != 0 and as_pool(address + POOL_AT).slot_bytes != slot_bytes:
        before, address = address, as_kept(address).next
    if address != 0:
        if before != 0:
            as_kept(before).next = as_kept(address).next
        else:
            common.pools = as_kept(address).next
    unlock(common_address)
    if address == 0:
        address = malloc(KEPT_BYTES)
        if address != 0:
            pool = as_pool(address + POOL_AT)
            pool.free = pool.made = 0
            pool.slot_bytes = slot_bytes
    return address


@internal
def return_pool(common_address: int, address: int) -> None:
    common = as_common(common_address)
    lock(common_address)
    as_kept(address).next = common.pools
    common.pools = address
    unlock(common_address)


@internal
def run_loops(launch_address: int, worth: int) -> int:
    """Run a grid without fibers, unless its first blocks take so long that other cores help.

    Then this returns SHARE, with the first blocks done.
    """
    launch = as_launch(launch_address)
    memory = malloc(launch.shared_bytes + 256)
    if memory == 0:
        launch.failed = NO_MEMORY
        return OVER
    launch.shared = (memory + 255) // 256 * 256
    axis, alone = launch.axis, launch.alone
    extent = launch.gdim[axis]
    began = monotonic_ns() if alone < extent else 0
    launch.end[axis] = alone
    call_address(launch.entry, launch_address)
    code = OVER
    if alone < extent and launch.failed == 0:
        launch.begin[axis], launch.end[axis] = alone, extent
        if (monotonic_ns() - began) * (extent - alone) // alone > worth:
            code = SHARE
        else:
            call_address(launch.entry, launch_address)
    libc_free(memory)
    return code


@internal
def perform(run_address: int) -> int:
    """Run the grid of a run that has begun; SHARE: but for what other cores can help with."""
    launch_address = run_address + LAUNCH_AT
    launch = as_launch(launch_address)
    common = as_run(run_address).common
    if launch.slot_bytes == 0:
        return run_loops(launch_address, as_common(common).worth)
    kept = borrow_pool(common, launch.slot_bytes)
    if kept == 0:
        launch.failed = NO_MEMORY
        return OVER
    launch.pool = kept + POOL_AT
    if launch.several != 0:
        atomic_add_word(common + WORK, 1)
        if load_acquire(common + DOZES) != 0:
            store_release(common + DOZES, 0)
            ring(common + HELP_BELL)
    call_address(launch.entry, launch_address)
    return_pool(common, kept)
    return OVER


@internal
def run_launches(queue_address: int) -> int:
    """Run what is left of the list of launches in hand; OVER, or what Python has to do."""
    queue, run = as_queue(queue_address), queue_address + RUN_AT
    launch, item = as_launch(run + LAUNCH_AT), as_item(queue.first)
    while queue.at < item.count and load_acquire(queue_address + SKIP) == 0:
        pair = item.what + 16 * queue.at
        queue.at += 1
        begin(run, load_acquire(pair), load_acquire(pair + 8), 0)
        code = perform(run)
        if code != OVER:
            return code
        if launch.failed != 0 or launch.text != 0:
            return LOOK
        end(run)
    return OVER


@internal
def drain(queue_address: int) -> int:
    """Do what is in the queue, and wait for more, until it is Python's turn; says for what.

    CALL: the item in hand is Python's. LOOK: a launch has run, and has failed or printed. SHARE:
    it has run as far as it is to run on one core. END: nothing more will come. Python then does
    its part, and calls again.
    """
    queue, run = as_queue(queue_address), queue_address + RUN_AT
    if load_acquire(run + CURRENT) != 0:  # Python has had its turn with it
        end(run)
    while True:
        if queue.done == queue.taken:
            take(queue_address)
        item = as_item(queue.first)
        if item.kind == END:
            finish(queue_address)
            return END
        if item.kind == WAIT:
            while not await_done(item.what, item.count, 0):
                pass
        elif load_acquire(queue_address + SKIP) == 0:
            if item.kind == CALL and queue.at == 0:
                queue.at = 1
                return CALL
            if item.kind == LAUNCHES:
                code = run_launches(queue_address)
                if code != OVER:
                    return code
            if item.kind == COPY:
                copy_bytes(load_acquire(item.what), load_acquire(item.what + 8), item.count)
        finish(queue_address)


# --- for Python


@internal
def begun(run_address: int, template: int, args: int) -> int:
    begin(run_address, template, args, 0)
    return 0


@internal
def ended(run_address: int) -> int:
    end(run_address)
    return 0


@internal
def reclaimed(queue_address: int) -> bool:
    """`reclaim`; returns whether nothing is left to do."""
    reclaim(queue_address)
    return load_acquire(queue_address + DONE) == load_acquire(queue_address + PUT)


# By name: the function, how many arguments it has, whether the GIL is kept.
CALLS = {
    "put": (put, 5, True), "reclaim": (reclaimed, 1, True), "in_hand": (in_hand, 2, True),
    "begin": (begun, 3, True), "end": (ended, 1, True), "await_done": (await_done, 3, False),
    "perform": (perform, 1, False), "drain": (drain, 1, False),
}  # fmt: skip


@cache
def native() -> SimpleNamespace:
    """The C functions that Python calls, by name."""
    made = SimpleNamespace()
    for name, (function, n, keeps_gil) in CALLS.items():
        code = c_function(word(*[word] * n), function.py_func)
        kind = ctypes.PYFUNCTYPE if keeps_gil else ctypes.CFUNCTYPE
        result = ctypes.py_object if function is in_hand else ctypes.c_int64
        setattr(made, name, kind(result, *[ctypes.c_int64] * n)(code.address))
        _keep.append(code)
    return made


_keep: list[Any] = []  # keep the code alive
of_process = np.zeros(1, COMMON)
of_process["told"], of_process["worth"] = address_of(embedder.told), WORTH_SHARING
of_process["alone_ns"] = ALONE_NS


def _after_fork() -> None:
    """In a forked child, in which nothing runs."""
    of_process["lock"] = of_process["latest"] = of_process["dozes"] = 0
    of_process["began"] = of_process["ended"] = of_process["block_ended"] = 0


os.register_at_fork(after_in_child=_after_fork)


def new_run() -> np.ndarray[Any, Any]:
    """A place in which a launch can run."""
    made = np.zeros(1, RUN)
    made["common"] = address_of(of_process)
    return made


_numbers = itertools.count(1)


def new_queue() -> np.ndarray[Any, Any]:
    """An empty queue."""
    made = np.zeros(1, QUEUE)
    made["run"]["common"], made["run"]["stream"] = address_of(of_process), next(_numbers)
    made["wanted"] = NEVER
    made["first"] = made["last"] = made["oldest"] = address_of(made) + EMPTY
    return made
