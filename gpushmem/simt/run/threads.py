"""Threads of a launch as fibers: their stacks, their place in the ring, and in their groups.

These functions are compiled for the plain CPU target, as those of `scheduler`.
"""

from __future__ import annotations

from numba import types

from gpushmem.artifacts.gpu_model import LANES
from gpushmem.native.internal import internal
from gpushmem.native.lock import lock, unlock
from gpushmem.native.memory import mmap, mprotect, store_release
from gpushmem.native.structs import offset, view
from gpushmem.simt.base.layout import BLOCK, FIBER, GROUP, LAUNCH, POOL, SPREAD, THREAD, WARP

__all__ = [
    "ALL", "EVERYONE", "FIBER_SLOT_BYTES", "GUARDED", "LOCK", "NO_MEMORY", "RING", "THREAD_OF",
    "WARPS", "WARP_BYTES", "as_block", "as_fiber", "as_group", "as_launch", "as_pool",
    "as_thread", "as_warp", "leave_grid", "leave_groups", "leave_ring", "number_thread",
    "put_in_ring", "reserve_threads", "start_group", "start_thread",
]  # fmt: skip

PAGE = 4096
GUARDED = 16 * 1024  # stacks with a guard page: each needs two of the 65,530 mappings Linux gives
NO_MEMORY = -2  # a value of LAUNCH.failed

as_launch, as_block, as_fiber = view(LAUNCH), view(BLOCK), view(FIBER)
as_pool, as_group, as_warp, as_thread = view(POOL), view(GROUP), view(WARP), view(THREAD)

RING = offset(LAUNCH, "ring")
ALL = offset(BLOCK, "all")
WARPS = offset(BLOCK, "warps")
THREAD_OF = offset(FIBER, "thread")
WARP_BYTES, GENERATION = WARP.itemsize, offset(GROUP, "generation")
EVERYONE, LOCK = offset(LAUNCH, "everyone"), offset(LAUNCH, "lock")
# A slot is: guard page, stack, FIBER. Slots begin at page boundaries; without a
# shift from slot to slot, the hot ends of all stacks would compete for the same cache sets.
COLOURS, COLOUR_BYTES = 16, 192
FIBER_BYTES = (FIBER.itemsize + 63) // 64 * 64
FIBER_SLOT_BYTES = PAGE + FIBER_BYTES + COLOURS * COLOUR_BYTES  # beside the stack

i4 = types.intc
READ_WRITE, PRIVATE_ANONYMOUS_NORESERVE = 3, 0x4022


@internal
def grow(pool_address: int, count: int) -> bool:
    """Add `count` stacks to the pool, each with a guard page below it while there are few."""
    pool = as_pool(pool_address)
    bytes_ = pool.slot_bytes
    base = mmap(0, bytes_ * count, i4(READ_WRITE), i4(PRIVATE_ANONYMOUS_NORESERVE), i4(-1), 0)
    if base == -1:
        return False
    for k in range(count):
        if pool.made < GUARDED and mprotect(base + bytes_ * k, PAGE, i4(0)) != 0:
            return False
        address = base + bytes_ * (k + 1) - FIBER_BYTES - pool.made % COLOURS * COLOUR_BYTES
        fiber = as_fiber(address)
        fiber.stack_top = address // 64 * 64
        fiber.next_free = pool.free
        pool.free = address
        pool.made += 1
    return True


@internal
def reserve_threads(pool_address: int, n: int) -> bool:
    """See to it that the pool has `n` free stacks."""
    pool = as_pool(pool_address)
    have, address = 0, pool.free
    while address != 0 and have < n:
        have, address = have + 1, as_fiber(address).next_free
    return have == n or grow(pool_address, n - have)


@internal
def start_group(address: int, n: int) -> None:
    group = as_group(address)
    group.arrived, group.alive, group.generation, group.votes = 0, n, 0, 0
    group.size, group.mark, group.acted = n, 0, 0


@internal
def first_frame(launch_address: int, fiber_address: int, main: int, end: int) -> int:
    """Lay out what `simt_switch` pops from a new stack; return its stack pointer."""
    launch = as_launch(launch_address)
    # Seven words are popped; the trampoline must then find the stack aligned to 16 bytes.
    sp = as_fiber(fiber_address).stack_top - 7 * 8 - 16
    store_release(sp + 8, end)  # r14
    store_release(sp + 16, fiber_address + THREAD_OF)  # r13
    store_release(sp + 24, main)  # r12
    store_release(sp + 48, launch.trampoline)
    return sp


@internal
def number_thread(launch_address: int, address: int, t: int) -> None:
    """Let a fiber be thread `t` of its block."""
    launch, thread, fiber = (
        as_launch(launch_address),
        as_thread(address + THREAD_OF),
        as_fiber(address),
    )
    bx, by = launch.bdim[0], launch.bdim[1]
    thread.tid[0], thread.tid[1], thread.tid[2] = t % bx, t // bx % by, t // (bx * by)
    thread.number = as_block(fiber.block).index * (bx * by * launch.bdim[2]) + t
    thread.mark = thread.number * SPREAD
    fiber.warp = fiber.block + WARPS + t // LANES * WARP_BYTES
    fiber.lane = t % LANES
    as_warp(fiber.warp).fibers[t % LANES] = address


@internal
def start_thread(launch_address: int, block_address: int, t: int, main: int, end: int) -> None:
    """Put thread `t` of a block at the end of the ring, ready to run `main`, then `end`."""
    launch, block = as_launch(launch_address), as_block(block_address)
    pool = as_pool(launch.pool)
    address = pool.free
    fiber = as_fiber(address)
    pool.free = fiber.next_free
    fiber.what = fiber.clock = fiber.poll = fiber.looked = fiber.looks = fiber.together = 0
    fiber.block = block_address
    fiber.sp = first_frame(launch_address, address, main, end)

    thread = as_thread(address + THREAD_OF)
    gx, gy = launch.gdim[0], launch.gdim[1]
    b = block.index
    thread.bid[0], thread.bid[1], thread.bid[2] = b % gx, b // gx % gy, b // (gx * gy)
    number_thread(launch_address, address, t)
    thread.places = launch.places
    for axis in range(3):
        thread.bdim[axis] = launch.bdim[axis]
        thread.gdim[axis] = launch.gdim[axis]
    thread.shared = block.shared
    thread.dynamic_shared = launch.dynamic_shared
    thread.user = launch.user
    thread.launch = launch.root
    thread.fiber = address
    put_in_ring(launch_address, address)


@internal
def put_in_ring(launch_address: int, address: int) -> None:
    """Let a fiber be the last in the ring of a core."""
    ring, fiber = as_fiber(launch_address + RING), as_fiber(address)
    fiber.launch = launch_address
    fiber.next, fiber.prev = launch_address + RING, ring.prev
    as_fiber(ring.prev).next = address
    ring.prev = address


@internal
def leave_grid(launch_address: int, n: int) -> None:
    """Let `n` threads not be among those that meet in `grid.sync` any more."""
    address, lock_address = launch_address + EVERYONE, launch_address + LOCK
    lock(lock_address)
    everyone = as_group(address)
    everyone.alive -= n
    if everyone.arrived > 0 and everyone.arrived >= everyone.alive:
        everyone.arrived = 0
        store_release(address + GENERATION, everyone.generation + 1)
    unlock(lock_address)


@internal
def leave_groups(address: int) -> None:
    """Let a fiber's thread not be one of its groups any more."""
    fiber = as_fiber(address)
    as_group(fiber.block + ALL).alive -= 1
    leave_grid(as_thread(address + THREAD_OF).launch, 1)
    as_group(fiber.warp).alive -= 1
    as_warp(fiber.warp).living &= ~(1 << fiber.lane)


@internal
def leave_ring(address: int) -> None:
    """Take a fiber out of the ring, and give its stack back."""
    fiber = as_fiber(address)
    as_fiber(fiber.prev).next = fiber.next
    as_fiber(fiber.next).prev = fiber.prev
    pool = as_pool(as_launch(fiber.launch).pool)
    fiber.next_free = pool.free
    pool.free = address
