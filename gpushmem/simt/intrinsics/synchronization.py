"""Barriers, warp operations and other waits of a launch's threads for each other.

Device functions, called by the intrinsics in `nvvm`. The threads of a block take turns on one
core, so nothing here needs atomics; the last thread to arrive acts for all and releases them.
Blocks and grids meet by `groups`.

**Warp operations.** A lane leaves its operation, mask and value in its FIBER and sets its bit in
`WARP.waiting`. When every living lane of the mask waits with the same mask in the same
operation, the last to arrive computes everybody's result and clears their bits. A lane's result
is its own, so it may run ahead into the next operation. Lanes with other masks are not
disturbed: divergent halves of a warp can shuffle independently, as on a GPU since Volta.

**activemask** gives the lanes that execute it together. A CPU has no lanes in step, so the lane
waits until each living lane of its warp waits for something, also after all have had a turn (a lane
that has been let go does not know it yet), and takes those that wait in `activemask` on the same
line: the largest set a GPU could report.
"""

from __future__ import annotations

from typing import Any

from gpushmem.artifacts.gpu_model import LANES
from gpushmem.native.memory import set_word, word_at
from gpushmem.native.structs import view
from gpushmem.simt.base.layout import WARP
from gpushmem.simt.compiler.cached_functions import ITSELF, Barrier, KeptDispatcher, Lanes, kept
from gpushmem.simt.compiler.groups import (
    arrive_at_block,
    as_group,
    block_group,
    check_lanes,
    meet_grid,
    park,
    release,
)
from gpushmem.simt.compiler.primitives import (
    LANE_MEETING,
    as_fiber,
    begin_wait,
    end_wait,
    fail_if,
    fiber_word,
    pause,
    poll,
    site_word,
    text_word,
)
from gpushmem.simt.compiler.target import device

__all__ = [
    "BLOCK_REDUCTIONS",
    "NOT_IN_MASK",
    "activemask",
    "grid_sync",
    "look_again",
    "match_all",
    "match_any",
    "nanosleep",
    "shuffle",
    "syncthreads",
    "syncwarp",
    "vote",
]

as_warp = view(WARP)
FULL = 0xFFFFFFFF
NOT_IN_MASK = 64  # failure codes of the engine itself start here
SYNC, VOTE, MATCH_ANY, MATCH_ALL, SHUFFLE, ACTIVE = range(6)


# --- blocks and grids


@kept
def park_at_syncthreads():
    park(text_word("syncthreads"))
    return 0


@kept(together=Barrier(park_at_syncthreads))
def syncthreads():
    if arrive_at_block(text_word("syncthreads")):
        release(block_group())
    return 0


def _block_reduction(name: str, result: Any) -> Any:
    def reduction(predicate):
        address = block_group()
        group = as_group(address)
        if predicate != 0:
            group.votes += 1
        if arrive_at_block(text_word(name)):
            group.result = result(group.votes, group.alive)
            group.votes = 0
            release(address)
        return group.result

    def of_block(predicates, results, n):
        votes = 0
        for t in range(n):
            votes += 1 if word_at(predicates + 8 * t) != 0 else 0
        found = result(votes, n)
        for t in range(n):
            set_word(results + 8 * t, found)
        return 0

    together = Lanes(KeptDispatcher(of_block, f"{__name__}.{name} of block"), masked=False)
    return KeptDispatcher(reduction, f"{__name__}.{name}", together)


@device
def _count(votes, alive):
    return votes


@device
def _all(votes, alive):
    return 1 if votes == alive else 0


@device
def _any(votes, alive):
    return 1 if votes > 0 else 0


# NVVM's name of the reduction -> device function of one predicate
BLOCK_REDUCTIONS = {
    "popc": _block_reduction("syncthreads_count", _count),
    "and": _block_reduction("syncthreads_and", _all),
    "or": _block_reduction("syncthreads_or", _any),
}


@kept
def grid_sync_of_block():
    meet_grid(text_word("grid.sync"), as_group(block_group()).alive)
    return 0


@kept(together=grid_sync_of_block)
def grid_sync():
    meet_grid(text_word("grid.sync"), 1)
    return 0


@kept(together=ITSELF)
def nanosleep(ns):
    poll(text_word("nanosleep"), 0, 8)
    return 0


@kept(together=ITSELF)
def look_again():
    poll(text_word("a loop that reads memory"), 0, 8)
    return 0


# --- warps


@device
def fiber_of(warp_address, lane):
    """The FIBER of a lane."""
    return as_fiber(as_warp(warp_address).fibers[lane])


@device
def assembled(warp_address, op, mask):
    """Whether every living lane of `mask` waits in `op` with the same mask."""
    warp = as_warp(warp_address)
    need = mask & warp.living
    if warp.waiting & need != need:
        return False
    for lane in range(LANES):
        if need >> lane & 1 != 0:
            other = fiber_of(warp_address, lane)
            if other.op != op or other.mask != mask:
                return False
    return True


@device
def let_go(warp_address, lanes):
    warp = as_warp(warp_address)
    warp.waiting &= ~lanes


@device
def check_calls(what, lanes):
    """Fail if one of the lanes waits in a call, and thus for this lane too: neither could go on."""
    fiber = as_fiber(fiber_word())
    if as_group(fiber.warp).arrived > 0:
        check_lanes(what, fiber.warp, lanes)
    block = block_group()
    if as_group(block).mark != 0:
        check_lanes(what, block, lanes)


@device
def gather(what, op, mask, value, argument):
    """Wait for the lanes of `mask`; True in the one that must then act for all and `let_go`."""
    fiber = as_fiber(fiber_word())
    address = fiber.warp
    warp = as_warp(address)
    mask = mask & FULL
    bit = 1 << fiber.lane
    fail_if(mask & bit == 0, NOT_IN_MASK, mask, fiber.lane, 0, 0)
    fiber.op, fiber.mask, fiber.value, fiber.argument = op, mask, value, argument
    warp.waiting |= bit
    if assembled(address, op, mask):
        return True
    check_calls(what, mask & warp.living)
    begin_wait(what, address, LANE_MEETING, mask, 8)
    while warp.waiting & bit != 0:
        pause()
        # A lane of the mask may have ended meanwhile.
        if warp.waiting & bit != 0 and assembled(address, op, mask):
            end_wait()
            return True
    end_wait()
    return False


@device
def ballot(warp_address, lanes):
    """The lanes whose value is not zero."""
    bits = 0
    for lane in range(LANES):
        if lanes >> lane & 1 != 0 and fiber_of(warp_address, lane).value != 0:
            bits |= 1 << lane
    return bits


@device
def give_all(warp_address, lanes, result):
    for lane in range(LANES):
        if lanes >> lane & 1 != 0:
            fiber_of(warp_address, lane).result = result


@device
def equals(warp_address, lanes, value):
    """The lanes whose value is `value`."""
    bits = 0
    for lane in range(LANES):
        if lanes >> lane & 1 != 0 and fiber_of(warp_address, lane).value == value:
            bits |= 1 << lane
    return bits


@kept
def syncwarp_of_block(masks, results, n):
    return 0  # all lanes are there


@kept(together=Lanes(syncwarp_of_block))
def syncwarp(mask):
    if gather(text_word("syncwarp"), SYNC, mask, 0, 0):
        fiber = as_fiber(fiber_word())
        let_go(fiber.warp, fiber.mask)
    return 0


@device
def voted(mode, bits, lanes):
    """The result of a vote: of `lanes`, those of `bits` are for it."""
    # mode 0: all, 1: any, 2: all the same, 3: ballot
    if mode == 0:
        return 1 if bits == lanes else 0
    if mode == 1:
        return 1 if bits != 0 else 0
    if mode == 2:
        return 1 if bits in (lanes, 0) else 0
    return bits


@kept
def vote_of_block(masks, modes, predicates, results, n):
    for first in range(0, n, LANES):
        bits, lanes = 0, min(LANES, n - first)
        for lane in range(lanes):
            if word_at(predicates + 8 * (first + lane)) != 0:
                bits |= 1 << lane
        for t in range(first, first + lanes):
            set_word(results + 8 * t, voted(word_at(modes + 8 * t), bits, (1 << lanes) - 1))
    return 0


@kept
def vote_alike(mask, mode, predicates, results, n):
    for first in range(0, n, LANES):
        bits, lanes = 0, min(LANES, n - first)
        for lane in range(lanes):
            bits |= (1 if word_at(predicates + 8 * (first + lane)) != 0 else 0) << lane
        found = voted(mode, bits, (1 << lanes) - 1)
        for t in range(first, first + lanes):
            set_word(results + 8 * t, found)
    return 0


@kept(together=Lanes(vote_of_block, alike=vote_alike, varies=2))
def vote(mask, mode, predicate):
    if gather(text_word("vote_sync"), VOTE, mask, predicate, mode):
        fiber = as_fiber(fiber_word())
        lanes = fiber.mask & as_warp(fiber.warp).living
        result = voted(mode, ballot(fiber.warp, lanes), lanes)
        give_all(fiber.warp, lanes, result)
        let_go(fiber.warp, fiber.mask)
    return as_fiber(fiber_word()).result


@kept
def match_any(mask, value):
    if gather(text_word("match_any_sync"), MATCH_ANY, mask, value, 0):
        fiber = as_fiber(fiber_word())
        lanes = fiber.mask & as_warp(fiber.warp).living
        for lane in range(LANES):
            if lanes >> lane & 1 != 0:
                other = fiber_of(fiber.warp, lane)
                other.result = equals(fiber.warp, lanes, other.value)
        let_go(fiber.warp, fiber.mask)
    return as_fiber(fiber_word()).result


@kept
def match_all(mask, value):
    if gather(text_word("match_all_sync"), MATCH_ALL, mask, value, 0):
        fiber = as_fiber(fiber_word())
        lanes = fiber.mask & as_warp(fiber.warp).living
        same = equals(fiber.warp, lanes, value) == lanes
        give_all(fiber.warp, lanes, lanes if same else 0)
        let_go(fiber.warp, fiber.mask)
    return as_fiber(fiber_word()).result


@device
def source_lane(mode, lane, argument):
    # mode 0: that lane, 1: up, 2: down, 3: xor; a lane outside the warp: one's own
    source = lane
    if mode == 0:
        source = argument & (LANES - 1)
    elif mode == 1:
        source = lane - (argument & (LANES - 1))
    elif mode == 2:
        source = lane + (argument & (LANES - 1))
    elif mode == 3:
        source = lane ^ (argument & (LANES - 1))
    return source if 0 <= source < LANES else lane


@kept
def shuffle_of_block(masks, modes, values, arguments, results, n):
    for t in range(n):
        lane = t & (LANES - 1)
        source = source_lane(word_at(modes + 8 * t), lane, word_at(arguments + 8 * t)) - lane + t
        set_word(results + 8 * t, word_at(values + 8 * (source if source < n else t)))
    return 0


@device
def shuffle_all(mode, values, argument, results, n):
    for t in range(n):
        lane = t & (LANES - 1)
        source = source_lane(mode, lane, argument) - lane + t
        set_word(results + 8 * t, word_at(values + 8 * (source if source < n else t)))


@kept
def shuffle_alike(mask, mode, values, argument, results, n):
    if mode == 0:  # a loop for each mode
        shuffle_all(0, values, argument, results, n)
    elif mode == 1:
        shuffle_all(1, values, argument, results, n)
    elif mode == 2:
        shuffle_all(2, values, argument, results, n)
    else:
        shuffle_all(3, values, argument, results, n)
    return 0


@kept(together=Lanes(shuffle_of_block, alike=shuffle_alike, varies=2))
def shuffle(mask, mode, value, argument):
    if gather(text_word("shfl_sync"), SHUFFLE, mask, value, argument):
        fiber = as_fiber(fiber_word())
        lanes = fiber.mask & as_warp(fiber.warp).living
        for lane in range(LANES):
            if lanes >> lane & 1 != 0:
                other = fiber_of(fiber.warp, lane)
                source = source_lane(mode, lane, other.argument)
                if lanes >> source & 1 == 0:
                    source = lane  # not in the mask: undefined on a GPU
                other.result = fiber_of(fiber.warp, source).value
        let_go(fiber.warp, fiber.mask)
    return as_fiber(fiber_word()).result


@device
def halted(warp_address):
    """Whether every living lane of the warp waits for something."""
    warp = as_warp(warp_address)
    for lane in range(LANES):
        if warp.living >> lane & 1 != 0 and fiber_of(warp_address, lane).what == 0:
            return False
    return True


@device
def waits_begun(warp_address):
    """How many waits the lanes of the warp have begun."""
    count = 0
    for lane in range(LANES):
        if as_warp(warp_address).living >> lane & 1 != 0:
            count += fiber_of(warp_address, lane).waits
    return count


@kept
def activemask():
    fiber = as_fiber(fiber_word())
    address = fiber.warp
    warp = as_warp(address)
    bit = 1 << fiber.lane
    fiber.op, fiber.mask, fiber.value = ACTIVE, 0, site_word()
    warp.waiting |= bit
    begin_wait(text_word("activemask"), address, LANE_MEETING, FULL, 8)
    while warp.waiting & bit != 0:
        begun = waits_begun(address)
        pause()
        still = warp.waiting & bit != 0 and waits_begun(address) == begun
        if still and halted(address):
            lanes = 0
            for lane in range(LANES):
                other = fiber_of(address, lane)
                waits = warp.waiting >> lane & 1 != 0 and other.op == ACTIVE
                if waits and other.value == fiber.value:
                    lanes |= 1 << lane
            give_all(address, lanes, lanes)
            let_go(address, lanes)
    end_wait()
    return fiber.result
