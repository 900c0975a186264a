"""Several cores run the blocks of one launch: how they come to an equal share of them.

Each core has a ring (`scheduler`), in a LAUNCH of its own whose `root` is that of the launch as a
whole. Blocks that have not begun are taken from the root's counter. A core that finds none there
puts its LAUNCH into the root's `wants`; another that has several resident blocks sees it in its
next turn, when all its fibers rest, and gives away half of them: it takes their fibers out of its
ring and hands them over as a list, which the first core makes part of its own ring.

Cores that wait for each other need their cores at the same time: where something else runs, too,
each meeting takes as long as the system lets that run, some milliseconds. A core notices when it
offers itself to others and comes back late (`yield_core`). Then it gives all its blocks to the
root and leaves, or if it is the root, all others do; and for a while no core of the process joins.

All of the root that several cores change is changed with its lock, and so is `given`, but `failed`,
which only ever becomes true, and `timed`, by atomic additions. A fiber belongs to one ring: what is
in it, and in its block, is changed by that core alone. It becomes another core's by `given`, stored
with release and loaded with acquire, so that core sees all that the first one has written. THREAD
names the root and does not change; what a thread needs of its core's LAUNCH it finds by
FIBER.launch, which is not kept across a pause.
"""

from __future__ import annotations

from gpushmem.native.internal import internal
from gpushmem.native.lock import lock, unlock
from gpushmem.native.memory import load_acquire, monotonic_ns, sched_yield, store_release, usleep
from gpushmem.native.structs import offset
from gpushmem.simt.base.layout import LAUNCH
from gpushmem.simt.run.threads import LOCK, RING, as_block, as_fiber, as_launch, put_in_ring

__all__ = [
    "CANCEL", "CROWDED", "FAILED", "close", "get_blocks", "join", "leave", "shares", "some_begin",
    "take_given", "yield_core",
]  # fmt: skip

CANCEL, CROWDED, FAILED, GIVEN, WANTS, TOTAL, JOINED, NEXT = (
    offset(LAUNCH, field)
    for field in (
        "cancel",
        "crowded",
        "failed",
        "given",
        "wants",
        "total",
        "joined",
        "next_block",
    )
)
LATE_NS = 1_000_000  # away from the core: others have work for it
RESTS_NS = 1_000_000  # since no thread has moved: what the launch waits for comes from elsewhere
YIELDS = 256  # looks, while it waits for blocks, before a core that has joined leaves ...
SLEEP_US = 50  # ... or the first one sleeps


@internal
def give_half(launch_address: int) -> None:
    """Give half of this core's blocks to the one that wants some."""
    launch = as_launch(launch_address)
    root = as_launch(launch.root)
    lock(launch.root + LOCK)
    to, root.wants = root.wants, 0
    unlock(launch.root + LOCK)
    if to != 0:
        give_blocks(launch_address, to, launch.resident - launch.resident // 2)


@internal
def give_blocks(launch_address: int, to: int, keep: int) -> None:
    """Give this core's blocks, but for `keep`, to another; once in a turn."""
    launch, seen, given, last = as_launch(launch_address), 0, 0, 0
    address = as_fiber(launch_address + RING).next
    while address != launch_address + RING:
        fiber = as_fiber(address)
        following, block = fiber.next, as_block(fiber.block)
        if block.counted != launch.turns:
            seen += 1
            block.counted, block.goes = launch.turns, seen > keep
        if block.goes:
            as_fiber(fiber.prev).next, as_fiber(following).prev = following, fiber.prev
            fiber.next, given = given, address
            last = address if last == 0 else last
        address = following
    launch.resident = keep
    if given == 0:
        return
    lock(launch.root + LOCK)
    as_fiber(last).next = as_launch(to).given
    as_launch(to).n_given += seen - keep
    store_release(to + GIVEN, given)
    unlock(launch.root + LOCK)


@internal
def take_given(launch_address: int) -> bool:
    """Make what other cores have given part of this core's ring; whether there is something."""
    if load_acquire(launch_address + GIVEN) == 0:
        return False
    launch = as_launch(launch_address)
    lock(launch.root + LOCK)
    address, launch.given = launch.given, 0
    launch.resident += launch.n_given
    launch.n_given = 0
    launch.progress += 1  # they are new here: their threads, too, may have to be let go
    unlock(launch.root + LOCK)
    while address != 0:
        following = as_fiber(address).next
        as_block(as_fiber(address).block).counted = 0  # that was a turn of another ring
        put_in_ring(launch_address, address)
        address = following
    return True


@internal
def shares(launch_address: int) -> bool:
    """Give and take blocks, in the scheduler's turn; False if this core is to run no more of them.

    It has joined, and it or the root is `crowded`: then the root has its blocks now.
    """
    launch = as_launch(launch_address)
    root_address = launch.root
    take_given(launch_address)
    if launch_address != root_address:
        crowded = load_acquire(launch_address + CROWDED) != 0
        if crowded or load_acquire(root_address + CROWDED) != 0:
            give_blocks(launch_address, root_address, 0)
            return False
    if load_acquire(root_address + WANTS) != 0 and launch.resident > 1:
        give_half(launch_address)
    return True


@internal
def some_begin(root_address: int) -> bool:
    """Whether a block that has not begun may."""
    root = as_launch(root_address)
    n_blocks = root.gdim[0] * root.gdim[1] * root.gdim[2]
    fresh = load_acquire(root_address + NEXT) < n_blocks
    return fresh and load_acquire(root_address + TOTAL) < root.max_resident


@internal
def want_blocks(launch_address: int) -> bool:
    """Ask for blocks, unless another core does; whether it has asked."""
    root_address = as_launch(launch_address).root
    root = as_launch(root_address)
    lock(root_address + LOCK)
    asks = root.wants == 0
    if asks:
        root.wants = launch_address
    unlock(root_address + LOCK)
    return asks


@internal
def withdraw(launch_address: int) -> bool:
    """Ask for blocks no more; False if another core is about to give some."""
    root_address = as_launch(launch_address).root
    root = as_launch(root_address)
    lock(root_address + LOCK)
    still = root.wants == launch_address
    if still:
        root.wants = 0
    unlock(root_address + LOCK)
    return still


@internal
def get_blocks(launch_address: int) -> bool:
    """Wait for blocks, in a core that has none; False if it is not needed any more.

    One that has joined leaves if no other has several blocks, or for a while none with several has
    come to its scheduler. The first core waits until all others have left.
    """
    root_address = as_launch(launch_address).root
    first, asked, looks = launch_address == root_address, False, 0
    while True:
        others = load_acquire(root_address + JOINED)  # first: who has left has given before
        if take_given(launch_address):
            return True
        over = load_acquire(root_address + FAILED) != 0
        fresh = some_begin(root_address)
        if first:
            leaves = others == 0
        else:
            leaves = looks > YIELDS or load_acquire(root_address + TOTAL) <= others
        if over or fresh or leaves:
            if not asked or withdraw(launch_address):
                return fresh and not over
        elif not asked:
            asked = want_blocks(launch_address)
        looks += 1
        if looks <= YIELDS:
            sched_yield()
        else:
            usleep(SLEEP_US)


@internal
def yield_core(launch_address: int) -> None:
    """Let others have the core; if they keep it for long, this core is `crowded`."""
    launch = as_launch(launch_address)
    if load_acquire(launch.root + JOINED) == 0:
        sched_yield()
        return
    before = monotonic_ns()
    sched_yield()
    if monotonic_ns() - before > LATE_NS:
        store_release(launch_address + CROWDED, 1)


# --- joining


@internal
def join(root_address: int) -> bool:
    """Let a core be one of those that run the launch, if there is something to do for it."""
    root = as_launch(root_address)
    idle = root.idle_since
    lock(root_address + LOCK)
    some = some_begin(root_address) or root.total > root.joined + 1
    rests = root.joined == 0 and idle != 0 and monotonic_ns() - idle > RESTS_NS
    joins = root.open != 0 and root.failed == 0 and some and not rests
    if joins:
        store_release(root_address + CROWDED, 0)
        root.joined += 1
        root.helped = max(root.helped, root.joined)
    unlock(root_address + LOCK)
    return joins


@internal
def leave(root_address: int) -> None:
    """A core that has joined has left."""
    lock(root_address + LOCK)
    as_launch(root_address).joined -= 1
    unlock(root_address + LOCK)


@internal
def close(root_address: int) -> None:
    """Let no other core join any more, and wait until those that have are gone."""
    lock(root_address + LOCK)
    as_launch(root_address).open = 0
    unlock(root_address + LOCK)
    while load_acquire(root_address + JOINED) != 0:
        sched_yield()
