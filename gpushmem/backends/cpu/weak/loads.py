"""What weak memory does to plain loads and stores of kernels, and when threads synchronise.

A plain load of symmetric memory may give what the thread's block has seen there before
(`visibility`), until a thread of the block does something that acquires: a wait, a test, an atomic
operation, a fence, a barrier. `g` and `get` acquire nothing. A store forgets the word.

Threads are interrupted at loads and stores, and at operations, wherever the dice say so; now and
then for so long that another PE, or another block, comes before. The more often a PE has taken such
a nap the rarer they become, so that they cost little; one PE in four hardly takes any.

A plain store to another PE's memory is pending like a `p`, but this PE's loads, stores and atomic
operations of the same bytes come after it, and all that follows a system-wide fence.
"""

from __future__ import annotations

from typing import Any

from gpushmem.backends.cpu.operations import hook
from gpushmem.backends.cpu.weak.operations import (
    ROLLED,
    force,
    released,
    roll,
    stored_to_peer,
    weak,
)
from gpushmem.backends.cpu.weak.pending import (
    as_line,
    as_weak,
    as_world,
    ask,
)
from gpushmem.backends.cpu.weak.visibility import acquire, forget, may_be_old, remembered
from gpushmem.native.memory import monotonic_ns
from gpushmem.native.structs import view
from gpushmem.ops import Op
from gpushmem.ops.row import READS
from gpushmem.simt.functions import device, kept
from gpushmem.simt.layout import LAUNCH
from gpushmem.simt.observe import ATOMIC, RELAXED, STORE, Observer
from gpushmem.simt.thread import alone, fiber_word, launch_word, pause

__all__ = ["INSIDE", "OBSERVER", "OPERATIONS", "acquires"]

SYSTEM = 2  # scope of a fence
OFTEN = 7  # bits, at most, of the number of accesses from one interruption to the next
# They tell what was there, and order nothing.
FETCHING = "g", "get", "iget", "multimem_reduce", "reduce_ll", "reduce_ll128"
as_launch = view(LAUNCH)


@kept
def synchronized():
    """The calling thread has done what others may synchronise with, and may have with others."""
    released()
    acquire()


@device
def interrupt():
    """Let the other threads of the launch run, if there are any; now and then, for a while."""
    own = as_weak(weak())
    if roll() & ((1 << min(1 + own.naps // 4, ROLLED)) - 1) == 0:
        own.naps += 1
        nap()
    elif not alone():
        as_launch(launch_word()).progress += 1
        pause()


@device
def nap():
    """Do nothing while others go on, PEs and blocks that have not begun; the PE is not idle."""
    launch, own, began = as_launch(launch_word()), weak(), monotonic_ns()
    ask(as_weak(own).nap, (own, 0))
    launch.timed += 1
    as_line(launch.log).nap += 1
    while ask(as_weak(own).nap, (own, began)) != 0:
        pause()
    as_line(launch.log).nap -= 1
    launch.timed -= 1
    launch.progress += 1


@kept(forceinline=True)
def moved(address, nbytes, how, value_at):
    """The address at which a load or store takes place; a value that is stored is at `value_at`."""
    log = as_launch(launch_word()).log
    if log == 0:
        return address
    numbers = as_line(log)
    numbers.left -= 1
    if numbers.left < 0:
        bits = min(roll() & OFTEN, as_weak(weak()).naps // 2)
        numbers.left = roll() & ((1 << bits) - 1)
        interrupt()
    if address < numbers.address or address >= numbers.uses:
        return address
    return symmetric(address, nbytes, how, value_at)


@device
def symmetric(address, nbytes, how, value_at):
    """The same, of symmetric memory."""
    world, fiber = as_launch(launch_word()).user, fiber_word()
    stride = as_world(world).stride
    own = as_world(world).heap <= address < as_world(world).heap + stride
    if how == STORE:
        if fiber != 0:
            forget(address, nbytes)
        if own:
            return address
        stored_to_peer(address, nbytes, value_at, world, 0)
        return value_at
    if not own and as_weak(as_world(world).weak).n > 0:
        force(address, nbytes, 1)
    if fiber == 0 or (address & 7) + nbytes > 8 or not may_be_old(address):
        return address
    return remembered(address)


@kept(forceinline=True)
def access(place, address, nbytes, how, value):
    if how & ATOMIC != 0:
        if how & RELAXED == 0:
            synchronized()
        elif fiber_word() != 0:
            forget(address, nbytes)
        log = as_launch(launch_word()).log
        if log != 0 and as_line(log).address <= address < as_line(log).uses:
            force(address, nbytes, 1)


@kept
def fences(scope):
    synchronized()
    world = as_launch(launch_word()).user
    if scope == SYSTEM and world != 0:
        weak = as_world(world).weak
        ask(as_weak(weak).settle, (weak, fiber_word()))


@kept
def warp_meets(mask):
    released()


@kept
def warp_met(mask):
    acquire()


@device
def interrupted():
    """Let the other threads of the launch run, now and then."""
    if roll() & ((1 << min(3, as_weak(weak()).naps // 2)) - 1) == 0:
        interrupt()


def generate(call: Any) -> None:
    """Before an operation."""
    call.run(interrupted)


def generate_after(call: Any, result: Any, kind: int, _: Any) -> None:
    """After one: what it has written to local memory, and what it orders, are seen.

    Others may have been waiting for it, and be faster than what follows.
    """
    call.run(interrupted)
    if acquires(call.op):
        call.run(acquire)


def acquires(op: Op) -> bool:
    """Whether a block's loads after an operation give what is there now."""
    if op.plain in FETCHING:
        return False
    writes_here = any(
        effect.how != READS and not op.arrays[effect.array].symmetric for effect in op.facts.effects
    )
    return bool(op.waits or op.hears or op.facts.orders or writes_here)


def interrupts_again(call: Any, result: Any, kind: int, _: Any) -> None:
    """After an operation, of which all accesses are seen."""
    call.run(interrupted)


INSIDE = hook.Observer(hook.is_event, generate, interrupts_again)
OPERATIONS = hook.Observer(hook.is_event, generate, generate_after, group_calls=released)
OBSERVER = Observer(
    "weak", access=access, moved=moved, fences=fences,
    block_met=synchronized, warp_meets=warp_meets, warp_met=warp_met, grid_meets=released,
    grid_met=acquire,
)  # fmt: skip
