"""Meetings of a warp, a block or a grid: its threads arrive, the last one acts for all.

A barrier is a meeting; so is a *call*, an operation of the embedder's that all threads of a warp or
a block make together, with the same arguments. The group keeps a `mark` of the call it is in, a
digest of the operation and its arguments, which each arriving thread compares with its own: one
load and one compare. If they differ the launch fails, and the numbers that the first thread to
arrive left on its stack (`words`) show the difference.

Two other mistakes are detected: when a thread is about to wait for a thread that waits for it in
another meeting; and when a call begins although threads of the group have returned from the kernel.
Barriers are not compared with each other; mistakes there are deadlocks.

No atomics: the threads of a block take turns on one core. The blocks of a grid may be on several;
they meet in `meet_grid`, with the launch's lock.
"""

from __future__ import annotations

from gpushmem.artifacts.gpu_model import LANES
from gpushmem.native.lock import lock, unlock
from gpushmem.native.memory import load_acquire, store_release
from gpushmem.native.structs import offset, view
from gpushmem.simt.base.layout import BLOCK, FIBER, GROUP, LAUNCH, WARP
from gpushmem.simt.compiler.cached_functions import outlined
from gpushmem.simt.compiler.primitives import (
    THREAD_OF,
    as_thread,
    begin_wait,
    end_wait,
    fail_if,
    fail_with,
    fiber_word,
    launch_word,
    pause,
    site_word,
    thread_of,
)
from gpushmem.simt.compiler.target import device

__all__ = [
    "APART",
    "LEFT",
    "MEETING",
    "UNLIKE",
    "arrive",
    "arrive_at_block",
    "arrive_in_call",
    "arrive_in_step",
    "begin_call",
    "block_group",
    "check_lanes",
    "mark_of",
    "meet_grid",
    "park",
    "release",
    "warp_group",
]

as_fiber, as_group, as_warp = view(FIBER), view(GROUP), view(WARP)
BLOCK_ALL, BLOCK_PARKED = offset(BLOCK, "all"), offset(BLOCK, "parked")
WARPS, WARP_BYTES = offset(BLOCK, "warps"), WARP.itemsize
EVERYONE, LOCK = offset(LAUNCH, "everyone"), offset(LAUNCH, "lock")
GENERATION = offset(GROUP, "generation")
take_lock, give_lock = device(lock.py_func), device(unlock.py_func)
MEETING = -1  # FIBER.compare of a thread that waits for its group; `wanted`: which meeting it is
CLAIMED = -(2**40)
DIFFER = 2  # GROUP.mark of a warp whose threads' calls differ; marks are odd
# Failures: threads are in different calls, or in one with different arguments; threads of the group
# have returned from the kernel.
APART, UNLIKE, LEFT = 65, 66, 67


@device
def block_group():
    """Address of the GROUP of the calling thread's block."""
    return as_fiber(fiber_word()).block + BLOCK_ALL


@device
def warp_group():
    """Address of the GROUP of the calling thread's warp."""
    return as_fiber(fiber_word()).warp


@device
def arrive(address, what):
    """Wait until every living thread of the group has arrived; True in one of them.

    That one acts for the group and must then call `release`; the others return after it. Threads
    that have returned from the kernel do not count, also when they return while others wait.
    """
    group = as_group(address)
    generation = group.generation
    if group.arrived == 0:
        group.first = fiber_word()
    group.arrived += 1
    if group.arrived < group.alive:
        begin_wait(what, address, MEETING, generation, 8)
        while group.generation == generation and group.arrived < group.alive:
            pause()
        end_wait()
    if group.generation != generation:
        return False
    group.arrived = CLAIMED  # keeps the others waiting while this thread acts, pauses included
    return True


@device
def release(address):
    """Release the group."""
    group = as_group(address)
    group.arrived = 0
    group.mark = 0
    group.generation += 1


@device
def meet_grid(what, n):
    """A barrier of all living threads of the grid, of which `n` arrive."""
    lock_address, address = launch_word() + LOCK, launch_word() + EVERYONE
    take_lock(lock_address)
    group = as_group(address)
    generation = group.generation
    if group.arrived == 0:
        group.first = fiber_word()
    group.arrived += n
    last = group.arrived >= group.alive
    if last:
        group.arrived = 0
        store_release(address + GENERATION, generation + 1)
    give_lock(lock_address)
    if not last:  # the last one, or one that leaves (`run.threads.leave_grid`), ends the wait
        begin_wait(what, address, MEETING, generation, 8)
        while load_acquire(address + GENERATION) == generation:
            pause()
        end_wait()


@device
def arrive_at_block(what):
    """`arrive` for a barrier of the block: fails if threads of it wait in a call."""
    check_block(what)
    return arrive(block_group(), what)


@device
def check_block(what):
    """Fail if threads of the block, or of the warp, wait in a call."""
    fiber = as_fiber(fiber_word())
    address = fiber.block + BLOCK_ALL
    if as_group(address).mark != 0:
        apart(what, as_group(address).first)
    if as_group(fiber.warp).arrived > 0:
        apart(what, as_group(fiber.warp).first)


@device
def park(what):
    """`arrive_at_block` of a thread that runs alone and ends as a fiber there."""
    check_block(what)
    group = as_group(block_group())
    if group.arrived == 0:
        group.first = as_fiber(fiber_word()).block + BLOCK_PARKED
        parked = as_fiber(group.first)
        parked.what, parked.site, parked.compare = what, site_word(), MEETING
        parked.address, parked.wanted = block_group(), group.generation
        mine, shown = as_thread(fiber_word() + THREAD_OF), as_thread(group.first + THREAD_OF)
        for axis in range(3):
            shown.tid[axis] = mine.tid[axis]
    group.arrived += 1


# --- calls


@device
def mark_of(address):
    """The mark of the call that a group is in."""
    return as_group(address).mark


@outlined
def begin_call(address, what, mark, words):
    """Let the calling thread's call be the group's; fails if the group is in another meeting.

    For a thread that finds another mark than its own. `words` is the address of numbers on its
    stack, of which the mark is a digest: what operation it is, the address of a C string with the
    names of those that follow, how many they are, and they.
    """
    group = as_group(address)
    if group.arrived != 0:
        differ(what, group.first, group.mark, group.words, words)
    group.mark, group.words = mark, words
    fiber = as_fiber(fiber_word())
    block = fiber.block + BLOCK_ALL
    if address == fiber.warp and as_group(block).arrived > 0:
        check_lanes(what, block, as_warp(fiber.warp).living)


@device
def arrive_in_call(address, what):
    """`arrive` for a call that has begun; True in one thread, when all have arrived."""
    fiber = as_fiber(fiber_word())
    warp = as_warp(fiber.warp)
    if address != fiber.warp and as_group(fiber.warp).arrived > 0:
        apart(what, as_group(fiber.warp).first)
    if warp.waiting != 0:
        check_exchanges(what)
    if not arrive(address, what):
        return False
    group = as_group(address)
    fail_if(group.alive != group.size, LEFT, what, group.size - group.alive, group.size, 0)
    return True


@device
def arrive_in_step(mark):
    """`arrive_in_call` of a warp, by all threads of a block in step, one after the other.

    1 in the last thread of a warp that is to act for it, -1 if the threads' marks differ; else 0.
    """
    fiber, thread = as_fiber(fiber_word()), as_thread(fiber_word() + THREAD_OF)
    bx, by, bz = thread.bdim[0], thread.bdim[1], thread.bdim[2]
    t = (thread.tid[2] * by + thread.tid[1]) * bx + thread.tid[0]
    group = as_group(fiber.block + WARPS + t // LANES * WARP_BYTES)
    if t % LANES == 0:
        group.mark = mark
    elif group.mark != mark:
        group.mark = DIFFER
    if t % LANES != LANES - 1 and t != bx * by * bz - 1:
        return 0
    same = group.mark == mark
    group.mark = 0
    return 1 if same else -1


@outlined
def check_exchanges(what):
    """Fail if a lane waits for the calling thread in an operation of warps, such as a shuffle."""
    fiber = as_fiber(fiber_word())
    warp = as_warp(fiber.warp)
    for lane in range(LANES):
        waits = warp.waiting >> lane & 1 != 0
        if waits and as_fiber(warp.fibers[lane]).mask >> fiber.lane & 1 != 0:
            apart(what, warp.fibers[lane])


@outlined
def check_lanes(what, address, lanes):
    """Fail if one of these lanes of the calling thread's warp waits in the group's meeting."""
    warp, generation = as_warp(as_fiber(fiber_word()).warp), as_group(address).generation
    for lane in range(LANES):
        if lanes >> lane & 1 != 0:
            fiber = as_fiber(warp.fibers[lane])
            waits = fiber.what != 0 and fiber.compare == MEETING and fiber.address == address
            if waits and fiber.wanted == generation:  # not one that has yet to wake up
                apart(what, warp.fibers[lane])


# --- failing


@outlined
def apart(what, other):
    fiber = as_fiber(other)
    fail_with(True, APART, (what, fiber.what, fiber.site, thread_of(other), 0, 0, 0, 0))


@outlined
def differ(what, other, mark, theirs, ours):
    """Fail with the first number that is not the same in two calls."""
    if mark == 0 or load_acquire(theirs) != load_acquire(ours):
        apart(what, other)
    names, n = load_acquire(ours + 8), load_acquire(ours + 16)
    fiber = as_fiber(other)
    for k in range(n):
        first, second = load_acquire(theirs + 24 + 8 * k), load_acquire(ours + 24 + 8 * k)
        numbers = (what, fiber.what, fiber.site, thread_of(other), names, k, first, second)
        fail_with(first != second, UNLIKE, numbers)
