"""Jobs of several nodes: what PEs of one machine must not do to each other as if they were on two.

Kernels of such a job have more code: `peer_array` is null for a PE of another node, and what it is
then used for fails; so does sending from memory that no network adapter knows. Kernels of a job of
one node have none of this.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numba import types

from gpushmem.artifacts.gpu_model import LANES
from gpushmem.backends.cpu.operations.access import (
    address_of,
    as_world,
    itemsize_of,
    remote,
    size_of,
)
from gpushmem.backends.cpu.operations.collectives import team_at
from gpushmem.backends.cpu.sync.address_ranges import Ranges, held
from gpushmem.backends.cpu.sync.barrier import as_team, pe_of
from gpushmem.backends.cpu.sync.world import World
from gpushmem.backends.operation_errors import FAR, FAR_TEAM, FEW, UNREGISTERED, error_of
from gpushmem.native.memory import i64
from gpushmem.native.structs import view
from gpushmem.ops import Op
from gpushmem.ops.roles import RemoteUnits, Target
from gpushmem.ops.row import BLOCK, WARP
from gpushmem.simt.functions import KeptDispatcher, device, kept
from gpushmem.simt.layout import THREAD
from gpushmem.simt.observe import Observer
from gpushmem.simt.thread import fail_if, thread_word, user_word
from gpushmem.size import span

__all__ = ["Registered", "generate", "guarded", "near_address", "wants"]

as_thread = view(THREAD)
is_registered = device(held)


class Registered:
    """The registered memory of a PE, as kernels and hosts of several nodes look it up."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.ranges = Ranges()
        world.native["mapped"] = lowest_address()
        world.native["registered"] = self.ranges.address

    def add(self, memory: np.ndarray[Any, Any]) -> None:
        """The memory has been registered."""
        self.ranges.add(*span(memory))

    def remove(self, memory: np.ndarray[Any, Any]) -> None:
        """It is so no longer."""
        self.ranges.remove(*span(memory))

    def check(self, op: Op, name: str, array: Any, pe: int) -> None:
        """Raise if an operation's local array cannot be sent to, or received from, a PE."""
        job = self._world.job
        if pe in job.node or not 0 <= pe < job.n_pes or not array.size:
            return
        low, high = span(array)
        if self._world.holds(array) or self.ranges.hold(low, high):
            return
        is_target = issubclass(op.roles[name], Target)
        raise error_of(UNREGISTERED, op.name, pe, low, high - low, is_target)


def lowest_address() -> int:
    """The lowest address that is memory of this process: what is below comes of a null array."""
    with Path("/proc/self/maps").open() as maps:
        return int(maps.readline().partition("-")[0], 16)


# --- in kernels


@device
def is_far(pe):
    world = as_world(user_word())
    return pe < world.node or pe >= world.next_node


@device
def is_on_another(pe):
    """Whether an operation's `pe`, which has not been checked yet, is one of another node."""
    return 0 <= pe < as_world(user_word()).n_pes and is_far(pe)


@device
def near_address(array, pe):
    """Address of a symmetric array on `pe`; 0 if that is on another node."""
    address = remote(address_of(array), size_of(array) * itemsize_of(array), pe)
    if is_far(pe):
        as_world(user_word()).far = pe
        return 0
    return address


@device
def check_mapped(address):
    world = as_world(user_word())
    fail_if(0 <= address < world.mapped, FAR, world.far, 0, 0, 0)


@device
def can_be_sent(start, end):
    world = as_world(user_word())
    if world.heap <= start and end <= world.heap + world.heap_bytes:
        return True
    return is_registered(world.registered, start, end)


@device
def check_local(address, nbytes, pe, is_target):
    wrong = nbytes > 0 and is_on_another(pe) and not can_be_sent(address, address + nbytes)
    fail_if(wrong, UNREGISTERED, pe, address, nbytes, is_target)


@device
def check_team(team):
    record = team_at(team)
    for rank in range(as_team(record).n_pes):
        pe = pe_of(record, rank)
        fail_if(is_far(pe), FAR_TEAM, pe, 0, 0, 0)


@device
def check_near(pe):
    fail_if(is_on_another(pe), FAR, pe, 0, 0, 0)


@device
def check_warp(pe, whole_block):
    thread = as_thread(thread_word())
    threads = thread.bdim[0] * thread.bdim[1] * thread.bdim[2]
    mine = min(LANES, threads - thread.number % threads // LANES * LANES)
    wrong = mine < LANES and (threads < LANES or not whole_block)
    fail_if(wrong and is_on_another(pe), FEW, pe, mine, 0, 0)


NEAR_TEAMS = "multicast_array", "multimem_reduce", "multimem_store"


def wants(op: Op) -> bool:
    """Whether calls of an operation are checked."""
    return bool(op.arrays)


def generate(call: Any) -> None:
    """Check, before an operation is performed, what it is to read and write."""
    op = call.op
    for name in op.arrays:
        if isinstance(call.argtypes[name], types.Array):
            call.run(check_mapped, call.address(name))
    for effect in op.facts.effects:
        if effect.array in op.local:
            words = call.address(effect.array), call.nbytes(effect), call.integer("pe")
            is_target = issubclass(op.roles[effect.array], Target)
            call.run(check_local, *words, i64(int(is_target)))
    if op.named(RemoteUnits):
        call.run(check_near, call.integer("pe"))
    if op.scope in (BLOCK, WARP) and "pe" in call.values:
        call.run(check_warp, call.integer("pe"), i64(int(op.scope == BLOCK)))
    if op.base in NEAR_TEAMS:
        call.run(check_team, call.integer("team"))


@kept
def access(place, address, nbytes, how, value):
    check_mapped(address)


@kept
def fences(scope):
    pass


@kept
def warp(mask):
    pass


@kept
def nothing():
    pass


UNSEEN = Observer("nodes", fences, nothing, warp, warp, nothing, nothing, access=access)


def guarded(observer: Observer | None) -> Observer:
    """An observer that also notices accesses to null arrays."""
    if observer is None:
        return UNSEEN
    seen = observer.access

    def both(place, address, nbytes, how, value):
        check_mapped(address)
        seen(place, address, nbytes, how, value)

    name = f"{observer.name}, nodes"
    return observer._replace(name=name, access=KeptDispatcher(both, f"{name}: access"))
