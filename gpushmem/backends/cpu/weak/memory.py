"""The host's side of weak memory: its record, and what the host does about pending operations."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from gpushmem import waiting_threads
from gpushmem.artifacts.argument_packing import address_of
from gpushmem.backends.cpu.operations import hook
from gpushmem.backends.cpu.seeded_order import number_of, order_of
from gpushmem.backends.cpu.sync.world import World
from gpushmem.backends.cpu.weak import loads, visibility
from gpushmem.backends.cpu.weak.operations import ANY, BODIES
from gpushmem.backends.cpu.weak.pending import (
    ALL_QPS,
    DEFAULT_QPS,
    LINE,
    OF_KERNELS,
    WEAK,
    functions,
)
from gpushmem.backends.cpu.weak.poison import check_ends, mark_end, poison
from gpushmem.native.structs import new
from gpushmem.simt.launch import Running

__all__ = ["WeakMemory", "weaken_kernels"]

IN_A_KERNEL = BODIES.keys() - {*loads.FETCHING} - {*ANY}  # operations that hosts perform so
RESTED = 32  # naps that one PE in four is said to have taken at the start
PAUSE = 5e-5  # seconds between two looks of a host that waits


def weaken_kernels(inside: bool, on: bool) -> None:
    """Let operations of kernels compiled from now on be late: as wholes, or from the `inside`."""
    hook.watch(loads.INSIDE if inside else loads.OPERATIONS, loads.OBSERVER, on)
    functions()


class WeakMemory:
    """One PE's pending operations, as its host sees them."""

    def __init__(self, world: World, seed: int) -> None:
        self._world, self._calls = world, functions()
        self._record = record = new(WEAK)
        self._turns = np.zeros(world.job.n_pes, np.int64)
        self._address = address_of(record)
        me = world.job.my_pe
        record["seed"] = number_of(seed, me)
        record["naps"] = RESTED * (record["seed"] & 3 == 0)
        record["my_pe"], record["n_pes"] = me, world.job.n_pes
        record["pes"], record["turns"] = address_of(world.board.pes), address_of(self._turns)
        record["performed"] = world.board.address("performed")
        record["active"] = record["generation"] = 1
        for name in OF_KERNELS:
            record[name] = self._calls[f"{name} address"]
        world.native["weak"] = self._address
        self._launches = 0
        waiting_threads.on_wait = self._waits

    def mapped(self) -> None:
        """The heap has been mapped."""
        world = self._world
        self._record["heap"] = world.heap
        self._record["heap_end"] = world.heap + world.heap_bytes

    def close(self) -> None:
        """The PE leaves; nothing is pending."""
        waiting_threads.on_wait = None

    @property
    def pending(self) -> bool:
        """Whether operations are pending."""
        return bool(self._record["n"][0])

    # --- contents of memory

    def poison(self, array: np.ndarray[Any, Any]) -> None:
        """An array has been allocated."""
        poison(array)

    def fresh(self, array: np.ndarray[Any, Any], offset: int) -> None:
        """A symmetric array has been allocated."""
        poison(array)
        mark_end(self._segment(), offset + array.nbytes)

    def freed(self, offset: int, nbytes: int) -> None:
        """The memory of one has been freed."""
        poison(self._segment()[offset : offset + nbytes])

    def check_ends(self, arrays: Sequence[Any]) -> None:
        """Raise if something has been written behind the end of an array."""
        if arrays:
            check_ends(self._segment(), self._world.job.my_pe, arrays)

    def _segment(self) -> np.ndarray[Any, Any]:
        world = self._world
        start = world.job.my_pe * world.stride
        return world.bytes[start : start + world.heap_bytes]

    # --- turns

    def _waits(self, number: int) -> None:
        """The host begins (1) or ends (-1) to wait."""
        self._calls["join"](self._address, -number)

    def idle(self, waits: bool) -> int:
        """The host waits and sees nothing new, or polls."""
        return int(self._calls["host_idle"](self._address, int(waits)))

    def wait_idle(self) -> None:
        """The host waits, and sees nothing new."""
        self.idle(waits=True)

    def late(self) -> None:
        """Perform what waits for too long; called now and then."""
        self._calls["late"](self._address)

    @contextmanager
    def running(self, launch: Running) -> Iterator[None]:
        """A launch runs."""
        self._launches += 1
        lines = np.zeros(1 + visibility.LINES, LINE)
        seed = number_of(int(self._record["seed"][0]), self._launches)
        lines["value"][0] = seed
        start = self._world.region
        lines["address"][0], lines["uses"][0] = start, start + len(self._world.bytes)
        launch.observed = self._launches, address_of(lines)
        launch.launch["idle"] = self._calls["idle address"]
        launch.launch["seed"] = order_of(seed)
        launch.launch["leave"] = self._calls["leave address"]
        self._calls["join"](self._address, 1)
        try:
            yield
        finally:
            self._calls["join"](self._address, -1)

    # --- operations of the host

    def inline(self, calls: dict[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
        """Those of `calls` that the host's thread performs itself, and how."""
        here = {name: call for name, call in calls.items() if name not in IN_A_KERNEL}
        here |= {"fence": self.fence, "flush": self.flush, "quiet": self.quiet}
        return here | {"barrier_all": partial(self._barrier_all, calls["barrier_all"])}

    def _barrier_all(self, call: Callable[[], None]) -> None:
        self.quiet()
        call()

    def fence(self) -> None:
        """The host's `fence`."""
        self._calls["fence"](self._address, 0, -1, DEFAULT_QPS)

    def flush(self) -> None:
        """The host's `flush`."""
        self._calls["flush"](self._address, 0)

    def quiet(self) -> None:
        """The host's `quiet`: wait until what has been called before has been performed."""
        asked = self._address, 0, int(self._record["calls"][0]), -1, ALL_QPS
        left: Callable[..., int] = self._calls["left"]
        if not left(*asked):
            return
        self._waits(1)
        try:
            while left(*asked):
                error = self._world.board.error()
                if error is not None:
                    raise error
                self.idle(waits=True)
                time.sleep(PAUSE)
        finally:
            self._waits(-1)
