"""Meeting of all PEs from the host: the barrier, and agreement on what is being done.

The barrier is central: each PE increments `arrived`; the one that makes it n_pes resets it and
moves `generation`, on which the others wait. Kernels' `barrier_all` uses the same two words in the
same way, so some PEs may come from a kernel and others from the host.

Memory order: what a PE wrote before the barrier is published by its sequentially consistent
increment of `arrived`. The last PE's increment reads all of them, its release store to
`generation` passes that on, and the acquire loads of those who wait receive it.

Before it arrives, a PE writes what it is doing to its slot of the control page. Slots come in two
sets, used in turn: a PE can write the next set while others still read this one, and cannot write
this one again before all have arrived at the next barrier, having read it.
"""

from __future__ import annotations

import time
from functools import cache
from typing import Any

from numba import types

from gpushmem.backends.cpu.world import CONTROL, SLOT_SETS, World
from gpushmem.errors import CollectiveMismatch
from gpushmem.simt.layout import offset
from gpushmem.simt.native import (
    atomic_add_word,
    c_function,
    load_acquire,
    sched_yield,
    store_release,
    usleep,
)

__all__ = ["ARRIVED", "GENERATION", "Meeting"]

ARRIVED, GENERATION = offset(CONTROL, "arrived"), offset(CONTROL, "generation")
SPINS, YIELDS, SLEEPS, SLEEP_US = 200, 1000, 200, 50  # about 20 ms between two looks at signals


def _make_arrive(version: int) -> Any:
    def arrive(control: int, generation: int, n_pes: int) -> None:
        version  # noqa: B018  (see `c_function`)
        if atomic_add_word(control + ARRIVED, 1) == n_pes - 1:
            store_release(control + ARRIVED, 0)
            store_release(control + GENERATION, generation + 1)

    return arrive


def _make_passed(version: int) -> Any:
    def passed(control: int, generation: int) -> bool:
        version  # noqa: B018
        for turn in range(SPINS + YIELDS + SLEEPS):
            if load_acquire(control + GENERATION) != generation:
                return True
            if turn >= SPINS + YIELDS:
                usleep(types.uintc(SLEEP_US))
            elif turn >= SPINS:
                sched_yield()
        return False

    return passed


word = types.intp


@cache
def native() -> dict[str, Any]:
    """`arrive` at the barrier of a generation; `passed` waits a while for it and says if it is."""
    return {
        "arrive": c_function(types.void(word, word, word), _make_arrive).ctypes,
        "passed": c_function(types.boolean(word, word), _make_passed).ctypes,
    }


class Meeting:
    """The calling PE's side of the job's host collectives."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._arrive, self._passed = native()["arrive"], native()["passed"]
        self._control = int(world.native["control"][0])
        self.waiting: tuple[str, float] | None = None  # (what, since when) while in a barrier

    def meet(self, what: str, nbytes: int = -1) -> None:
        """Wait until all PEs are in this call; raises `CollectiveMismatch` if one is in another.

        `what` names the call, at most 112 bytes of it; PEs must also agree on `nbytes`. All PEs
        that came from the host see the same slots and raise together.
        """
        world = self._world
        generation = int(world.control["generation"][0])
        slots = world.slots[generation % SLOT_SETS]
        slots[world.job.my_pe] = (generation, nbytes, what.encode())
        self.waiting = (what, time.monotonic())
        self._arrive(self._control, generation, world.job.n_pes)
        while not self._passed(self._control, generation):
            # Back in Python now and then, so that signals are handled, and to see who has ended.
            # One that ended after arriving is no reason to complain: hence the second look.
            if world.ended.any() and not self._passed(self._control, generation):
                gone = ", ".join(f"PE {pe}" for pe in world.ended.nonzero()[0])
                raise CollectiveMismatch(
                    f"{what} waits for {gone}, which ended without making this call. "
                    "Every PE must make the same collective calls in the same order"
                )
        self.waiting = None
        said = [_said(slot, generation) for slot in slots.copy()]
        ours = said[world.job.my_pe]
        if any(other != ours and not (other == KERNEL and nbytes < 0) for other in said):
            raise CollectiveMismatch(
                "PEs met in different collective calls: "
                + "; ".join(f"PE {pe}: {text}" for pe, text in enumerate(said))
                + ". Every PE must make the same collective calls in the same order"
            )


KERNEL = "barrier_all in a kernel"


def _said(slot: tuple[int, int, bytes], generation: int) -> str:
    then, nbytes, what = slot
    if then != generation:
        return KERNEL
    return what.decode() + (f" of {nbytes} bytes" if nbytes >= 0 else "")
