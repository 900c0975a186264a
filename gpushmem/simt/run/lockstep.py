"""Blocks whose threads are in lockstep, and those threads while they are not.

A block is one fiber, whose function (`blocks.fast`) runs all its threads. Where they go different
ways it calls `fall_apart`: threads that are not yet where all meet again go there alone, on the
block's own stack if there is only one, else as fibers. Where each goes on is its *code*, in the
block's frame (`layout`).

Those that are there wait for the others; but these may wait for what those still have to do. So
when nothing moves, they go on alone, too (`let_go`), to the next barrier; where all have come to
one, they are in step again if all are at the same.
"""

from __future__ import annotations

from gpushmem.artifacts.gpu_model import LANES
from gpushmem.native.internal import internal
from gpushmem.native.memory import call_address, load_acquire, simt_switch, store_release
from gpushmem.native.structs import offset
from gpushmem.simt.base.layout import BLOCK, CODE_BYTES, EXITED, PARKED
from gpushmem.simt.run.threads import (
    ALL,
    NO_MEMORY,
    RING,
    THREAD_OF,
    WARP_BYTES,
    WARPS,
    as_block,
    as_fiber,
    as_group,
    as_launch,
    as_thread,
    as_warp,
    leave_groups,
    leave_ring,
    number_thread,
    reserve_threads,
    start_thread,
)

__all__ = ["IN_STEP", "end_lane", "fall_apart", "let_go", "start_block"]

IN_STEP, AT_BARRIERS = -2, -1  # BLOCK.stop while threads are not apart; or stop at barriers only
PARKED_AT = offset(BLOCK, "parked")


@internal
def start_block(launch_address: int, address: int, n: int) -> None:
    """Start a block whose threads are in lockstep: one fiber for all."""
    launch, block = as_launch(launch_address), as_block(address)
    block.moving, block.stop = 0, IN_STEP
    parked = as_fiber(address + PARKED_AT)
    parked.what, parked.block = 0, address
    for t in range(n):
        as_warp(address + WARPS + t // LANES * WARP_BYTES).fibers[t % LANES] = address + PARKED_AT
    start_thread(launch_address, address, 0, launch.thread_main, launch.end_thread)


@internal
def end_lane(thread_address: int) -> None:
    """End the fiber of a thread that has run alone: it stops, is parked, or has returned."""
    thread = as_thread(thread_address)
    address = thread.fiber
    fiber = as_fiber(address)
    as_launch(fiber.launch).progress += 1
    as_block(fiber.block).moving -= 1
    as_warp(fiber.warp).fibers[fiber.lane] = fiber.block + PARKED_AT
    if load_acquire(as_block(fiber.block).frame + CODE_BYTES * lane_of(address)) == EXITED:
        leave_groups(address)
    leave_ring(address)
    to = fiber.launch + RING if as_launch(thread.launch).failed != 0 else fiber.next
    simt_switch(address, as_fiber(to).sp)


@internal
def lane_of(address: int) -> int:
    """The number of a fiber's thread in its block."""
    fiber = as_fiber(address)
    return (fiber.warp - fiber.block - WARPS) // WARP_BYTES * LANES + fiber.lane


@internal
def run_alone(address: int, t: int) -> None:
    """Run thread `t` of a block on the block's own stack."""
    fiber, launch = as_fiber(address), as_launch(as_thread(address + THREAD_OF).launch)
    number_thread(as_thread(address + THREAD_OF).launch, address, t)
    block = as_block(fiber.block)
    call_address(launch.lane_main, address + THREAD_OF)
    as_warp(fiber.warp).fibers[fiber.lane] = fiber.block + PARKED_AT
    if load_acquire(block.frame + CODE_BYTES * t) == EXITED:
        leave_groups(address)


@internal
def can_go_on(code: int, stop: int) -> bool:
    """Whether a thread with this code has something to do."""
    return code & PARKED == 0 and code not in (EXITED, stop)


@internal
def start_lanes(launch_address: int, block_address: int, only: int) -> bool:
    """Start all threads that can go on, or only those that have stopped at `only`, as fibers."""
    launch, block = as_launch(launch_address), as_block(block_address)
    n = launch.bdim[0] * launch.bdim[1] * launch.bdim[2]
    for t in range(n):
        code = load_acquire(block.frame + CODE_BYTES * t)
        if code == only if only > 0 else can_go_on(code, block.stop):
            if not reserve_threads(launch.pool, 1):
                as_launch(launch.root).failed = NO_MEMORY
                return False
            start_thread(launch_address, block_address, t, launch.lane_main, launch.end_lane)
            block.moving += 1
    return True


@internal
def fall_apart(thread_address: int, stop: int, frame: int, barrier: int) -> int:
    """Run the threads of a block alone until all have stopped at `stop`, or are in step again.

    Called on the block's stack; `frame` is the block's; `barrier` says whether there is one where
    they stop. Returns the code that all have: `stop`, or where they go on behind a barrier; 0 if
    all have returned, or the launch has failed.
    """
    thread = as_thread(thread_address)
    launch, block = as_launch(thread.launch), as_block(as_fiber(thread.fiber).block)
    n = launch.bdim[0] * launch.bdim[1] * launch.bdim[2]
    block.stop, block.barrier = stop, barrier
    as_launch(as_fiber(thread.fiber).launch).progress += 1  # they may have polled before, in step
    code = -1
    while code < 0 and launch.failed == 0:
        if run_all(thread_address, n):
            code = agreed(thread_address, stop, n)
    block.stop = IN_STEP
    return max(code, 0)


@internal
def run_all(thread_address: int, n: int) -> bool:
    """Run the threads that have something to do, until none has; False if the launch failed."""
    thread = as_thread(thread_address)
    address, launch = thread.fiber, as_launch(thread.launch)
    block = as_block(as_fiber(address).block)
    able, last = 0, 0
    for t in range(n):
        if can_go_on(load_acquire(block.frame + CODE_BYTES * t), block.stop):
            able, last = able + 1, t
    if able == 1:
        run_alone(address, last)
    elif able > 1 and not start_lanes(as_fiber(address).launch, as_fiber(address).block, 0):
        return False
    while block.moving > 0 and launch.failed == 0:
        simt_switch(address, as_fiber(as_fiber(address).next).sp)
    return launch.failed == 0


@internal
def agreed(thread_address: int, stop: int, n: int) -> int:
    """The code that all threads of the block have; -1 if some have to go on alone.

    Those that stand at a barrier may go on if none has anything to do before one.
    """
    block_address = as_fiber(as_thread(thread_address).fiber).block
    block, group = as_block(block_address), as_group(block_address + ALL)
    frame, stopped = block.frame, 0
    first, alike = load_acquire(frame), True
    for t in range(n):
        code = load_acquire(frame + CODE_BYTES * t)
        alike = alike and code == first
        stopped += code == block.stop and code != EXITED
    if alike and first in (stop, EXITED):
        return first
    block.stop = AT_BARRIERS
    if stopped > 0:  # others are past that place, or at a barrier before it
        return -1
    group.arrived = 0
    group.generation += 1
    as_fiber(block_address + PARKED_AT).what = 0
    for t in range(n):
        code = load_acquire(frame + CODE_BYTES * t)
        store_release(frame + CODE_BYTES * t, code & ~PARKED)
    return first & ~PARKED if alike else -1


@internal
def let_go(launch_address: int, barrier: int) -> bool:
    """Let threads go on alone that have stopped where others have yet to come, which wait.

    They may have to do what the others wait for. If there is a `barrier` where they have stopped,
    they will not; then it is for the report, and to find mistakes.
    """
    some = False
    address = as_fiber(launch_address + RING).next
    while address != launch_address + RING:
        fiber = as_fiber(address)
        block = as_block(fiber.block)
        stop = block.stop
        if stop > 0 and block.barrier == barrier:
            block.stop = AT_BARRIERS
            some = start_lanes(launch_address, fiber.block, stop) or some
        address = fiber.next
    return some
