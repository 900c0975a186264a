"""The scheduler of kernels that wait: fibers in a ring, blocks admitted when nothing else moves.

Each thread of a resident block is a fiber (or each block whose threads are in lockstep), a member
of one ring together with the scheduler itself. A thread that waits yields to the next in the ring
(`primitives.pause`), so one turn of the ring polls every waiting thread once; the scheduler gets
its turn between the last and the first. If no thread has moved since its previous turn, it admits
the next block of the grid, and when `max_resident` blocks are there or none is left, it backs off:
spin, yield the core, sleep. A grid that needs no block to wait for another thus runs one block at a
time on warm stacks. Threads that keep meeting each other while they poll for another block count as
moving, so a block is also admitted after PATIENCE turns.

A ring is one core's. Others may run blocks of the same launch in rings of their own;
`load_balancing` says what they have in common. These functions are compiled for the plain CPU
target and know nothing of kernels.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from numba import types

from gpushmem.artifacts.gpu_model import LANES
from gpushmem.native.c_function import c_function
from gpushmem.native.internal import internal
from gpushmem.native.lock import lock, unlock
from gpushmem.native.memory import (
    call_address,
    libc_free,
    load_acquire,
    malloc,
    monotonic_ns,
    simt_switch,
    store_release,
    ticks,
    usleep,
)
from gpushmem.native.structs import offset
from gpushmem.simt.base import fiber as fibers
from gpushmem.simt.base.layout import BLOCK, FRAME_ALIGN, LAUNCH
from gpushmem.simt.run.load_balancing import (
    CANCEL,
    FAILED,
    close,
    get_blocks,
    shares,
    some_begin,
    take_given,
    yield_core,
)
from gpushmem.simt.run.lockstep import end_lane, fall_apart, let_go, start_block
from gpushmem.simt.run.threads import (
    ALL,
    EVERYONE,
    FIBER_SLOT_BYTES,
    GUARDED,
    LOCK,
    NO_MEMORY,
    RING,
    WARP_BYTES,
    WARPS,
    as_block,
    as_fiber,
    as_group,
    as_launch,
    as_pool,
    as_thread,
    as_warp,
    leave_grid,
    leave_groups,
    leave_ring,
    reserve_threads,
    start_group,
    start_thread,
)

__all__ = ["CANCELLED", "FIBER_SLOT_BYTES", "GUARDED", "NO_MEMORY", "OWED", "addresses"]

SPINS = 8  # idle turns before the core is offered to others
YIELDS = 512  # ... before sleeping
SLEEP_US = 100
SOON, LATE = 2, 400  # idle turns before threads run ahead of others of their block: see `let_go`
PATIENCE = 256  # turns after which another block is admitted although threads move
PRIMES = 1_000_003, 1_000_033, 1_000_037, 1_000_039
CANCELLED = -1  # a value of LAUNCH.failed
OWED = 69  # ... with the site of what a block has not undone, see BLOCK: the embedder's trap

OPEN = offset(LAUNCH, "open")
BLOCK_BYTES = BLOCK.itemsize + 256  # what follows is shared memory, aligned to 256 bytes


@internal
def take_block(launch_address: int) -> int:
    """Memory for one resident block with its shared arrays; 0 if there is none. With the lock."""
    launch = as_launch(launch_address)
    address = launch.free_blocks
    if address != 0:
        launch.free_blocks = as_block(address).next_free
        return address
    address = malloc(BLOCK_BYTES + launch.shared_bytes + FRAME_ALIGN + launch.frame_bytes)
    if address != 0:
        block = as_block(address)
        block.shared = (address + BLOCK_BYTES) // 256 * 256
        block.frame = (
            (block.shared + launch.shared_bytes + FRAME_ALIGN) // FRAME_ALIGN * FRAME_ALIGN
        )
        block.next_made = launch.made_blocks
        launch.made_blocks = address
    return address


@internal
def in_order(k: int, n: int, seed: int) -> int:
    """The k-th number below `n` in an order that a seed chooses; in their own if that is 0."""
    if seed == 0:
        return k
    step = PRIMES[seed & 3]
    return (seed // 4 + k * (step if n % step != 0 else 1)) % n


@internal
def poison(address: int, nbytes: int) -> None:
    """Fill fresh shared memory with what is NaN in all floating-point types."""
    for at in range(address, address + nbytes, 8):
        store_release(at, -1)


@internal
def admit(launch_address: int) -> None:
    """Make the next block of the grid resident on this core, if there is memory and one is left."""
    launch = as_launch(launch_address)
    root = as_launch(launch.root)
    n = launch.bdim[0] * launch.bdim[1] * launch.bdim[2]
    reserved = reserve_threads(launch.pool, 1 if launch.lane_main != 0 else n)
    address = 0
    lock(launch.root + LOCK)
    if some_begin(launch.root):
        if reserved:
            address = take_block(launch.root)
        if address != 0:
            n_blocks = launch.gdim[0] * launch.gdim[1] * launch.gdim[2]
            as_block(address).index = in_order(root.next_block, n_blocks, launch.seed)
            root.next_block += 1
            root.total += 1
        elif root.total == 0:
            root.failed = NO_MEMORY
        else:
            root.max_resident = root.total
    unlock(launch.root + LOCK)
    if address == 0:
        return
    if launch.seed != 0:
        poison(as_block(address).shared, launch.shared_bytes)
    as_block(address).phase = as_block(address).owed = 0
    as_block(address).counted = as_block(address).late = 0
    if launch.block_ended != 0:
        as_block(address).began = ticks()
    launch.resident += 1
    start_group(address + ALL, n)
    for w in range((n + LANES - 1) // LANES):
        lanes = min(LANES, n - w * LANES)
        warp = as_warp(address + WARPS + w * WARP_BYTES)
        start_group(address + WARPS + w * WARP_BYTES, lanes)
        warp.living, warp.waiting = (1 << lanes) - 1, 0
    if launch.lane_main != 0:
        start_block(launch_address, address, n)
        return
    for t in range(n):
        thread = in_order(t, n, launch.seed)
        start_thread(launch_address, address, thread, launch.thread_main, launch.end_thread)


@internal
def end_thread(thread_address: int) -> None:
    """Take the calling thread out of the ring and its groups, and hand over for good."""
    thread = as_thread(thread_address)
    address = thread.fiber
    fiber, root = as_fiber(address), as_launch(thread.launch)
    launch, block = as_launch(fiber.launch), as_group(fiber.block + ALL)
    launch.progress += 1
    if launch.lane_main != 0:  # all threads that had not ended alone
        leave_grid(thread.launch, block.alive)
        block.alive = 0
    else:
        leave_groups(address)
    leave_ring(address)
    if block.alive == 0:
        if launch.block_ended != 0:
            call_address(launch.block_ended, address)
        owed = as_block(fiber.block).owed
        lock(thread.launch + LOCK)
        if owed != 0 and root.failed == 0:
            root.failed, root.site = OWED, owed
            for axis in range(3):
                root.failed_tid[axis] = thread.tid[axis]
                root.failed_bid[axis] = thread.bid[axis]
        root.total -= 1
        as_block(fiber.block).next_free = root.free_blocks
        root.free_blocks = fiber.block
        unlock(thread.launch + LOCK)
        launch.resident -= 1
    # After a failure nothing more of the launch runs: straight back to the scheduler.
    to = fiber.launch + RING if root.failed != 0 else fiber.next
    simt_switch(address, as_fiber(to).sp)


@internal
def abandon(launch_address: int) -> None:
    """Give back the stacks of threads still in the ring, and empty it; none waits any more."""
    launch, ring = as_launch(launch_address), as_fiber(launch_address + RING)
    pool = as_pool(launch.pool)
    address = as_fiber(launch_address + RING).next
    while address != launch_address + RING:
        fiber = as_fiber(address)
        following = fiber.next
        fiber.next_free = pool.free
        pool.free = address
        address = following
    ring.next = ring.prev = launch_address + RING


@internal
def free_blocks(launch_address: int) -> None:
    """Give back the memory of all blocks of a launch."""
    address = as_launch(launch_address).made_blocks
    while address != 0:
        following = as_block(address).next_made
        libc_free(address)
        address = following


@internal
def back_off(launch_address: int, idle: int, polled: bool) -> None:
    """Wait a little, the longer the more turns have been `idle`, so that other PEs get the core.

    A thread that polls may be working in between: then yield the core, but do not sleep.
    """
    if idle == 1:
        as_launch(launch_address).idle_since = monotonic_ns()
    if idle > SPINS + YIELDS and not polled:
        usleep(SLEEP_US)
    elif idle > SPINS:
        yield_core(launch_address)


@internal
def runs_ahead(launch_address: int, idle: int) -> bool:
    """Whether threads have been let go on alone, since nothing moves."""
    if idle == SOON:
        return let_go(launch_address, 0)
    return idle == LATE and let_go(launch_address, 1)


@internal
def run_ring(launch_address: int) -> None:
    """Run blocks of a grid on this core until none is left for it, or the launch has failed."""
    launch = as_launch(launch_address)
    root_address, ring_address = launch.root, launch_address + RING
    ring = as_fiber(ring_address)
    ring.next = ring.prev = ring_address
    seen, polls, idle, turns = -1, 0, 0, 0
    while load_acquire(root_address + FAILED) == 0:
        moved, polled = launch.progress != seen, launch.polls != polls
        seen, polls, turns = launch.progress, launch.polls, turns + 1
        launch.turns += 1
        launch.rests += (launch.lane_main == 0) | (idle > LATE)
        if not shares(launch_address):
            break
        if launch.resident == 0 or ((not moved or turns > PATIENCE) and some_begin(root_address)):
            turns = 0
            admit(launch_address)
            if launch.resident == 0:
                if get_blocks(launch_address):
                    continue
                break
        elif moved:
            idle = 0
            launch.idle_since = 0
        else:
            idle += 1
            if launch.lane_main != 0 and runs_ahead(launch_address, idle):
                idle = 0
            if launch.idle != 0:
                call_address(launch.idle, launch_address)
            back_off(launch_address, idle, polled)
        if launch.text_bytes != 0:
            call_address(launch.flush, launch_address)
        if load_acquire(launch_address + CANCEL) != 0:
            cancel(root_address)
            break
        simt_switch(ring_address, as_fiber(ring.next).sp)
    if launch.leave != 0:
        call_address(launch.leave, launch_address)
    abandon(launch_address)


@internal
def cancel(root_address: int) -> None:
    """Let the launch fail as cancelled, if it has not failed otherwise."""
    lock(root_address + LOCK)
    if load_acquire(root_address + FAILED) == 0:
        store_release(root_address + FAILED, CANCELLED)
    unlock(root_address + LOCK)


@internal
def run(launch_address: int) -> None:
    """Run a grid, or on a core that has joined a part of it, to its end or its first failure."""
    launch = as_launch(launch_address)
    if launch.root != launch_address:
        run_ring(launch_address)
        return
    n_blocks = launch.gdim[0] * launch.gdim[1] * launch.gdim[2]
    threads = launch.bdim[0] * launch.bdim[1] * launch.bdim[2]
    start_group(launch_address + EVERYONE, n_blocks * threads)
    if launch.several != 0 and launch.seed == 0 and launch.idle == 0:
        store_release(launch_address + OPEN, 1)
    run_ring(launch_address)
    if launch.several != 0:
        close(launch_address)
        if take_given(launch_address):  # after a failure
            abandon(launch_address)
    launch.timed = 0
    free_blocks(launch_address)


@cache
def addresses() -> dict[str, int]:
    """Compile the scheduler; return the addresses of `run` and of a LAUNCH's code fields."""
    symbols = fibers.install()
    compiled = {
        function.__name__: c_function(types.void(types.intp), function.py_func)
        for function in (run, end_thread, end_lane)
    }
    compiled["fall_apart"] = c_function(types.intp(*[types.intp] * 4), fall_apart.py_func)
    _keep.extend(compiled.values())
    return {"trampoline": symbols["simt_trampoline"]} | {
        name: function.address for name, function in compiled.items()
    }


_keep: list[Any] = []  # keep the code alive
