"""What a PE that is traced records on its host: operations, meetings, launches; names and lines."""

from __future__ import annotations

import ctypes
import os
import time
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from gpushmem import settings
from gpushmem.artifacts.argument_packing import address_of
from gpushmem.backends.cpu.sync.world import World
from gpushmem.backends.host.tracer import HostTracer
from gpushmem.job.job import current
from gpushmem.ops import TEAM_NODE, TEAM_SHARED
from gpushmem.simt.launch import Form, form_hooks, of_process
from gpushmem.source_lines import user_place
from gpushmem.trace import counter_instrumentation
from gpushmem.trace.counters import Counters, Stats
from gpushmem.trace.event_facts import Facts
from gpushmem.trace.kernel_events import native
from gpushmem.trace.ring import Ring

__all__ = ["Tracer", "tracer"]

LONG = 2_000_000  # ticks, about a millisecond


def tracer(world: World) -> Tracer | None:
    """What traces this PE, or counts what it does, if the job is to be."""
    name = "GPUSHMEM_STATS" if settings.is_set("GPUSHMEM_STATS") else "GPUSHMEM_TRACE"
    if not settings.is_set(name):
        return None
    made = _of_process(name, Path(settings.get(name)), os.getpid())
    made.begin(world)
    return made


@cache
def _of_process(setting: str, folder: Path, pid: int) -> Tracer:
    """The process's tracer: one, however often it calls `init`; not that of one it is a fork of."""
    job = current()
    pe, n_pes = (0, 1) if job is None else (job.my_pe, job.n_pes)
    if setting == "GPUSHMEM_STATS":
        return Tracer(Counters(folder, pe, n_pes), counter_instrumentation.native())
    return Tracer(Ring(folder, pe, n_pes, settings.get("GPUSHMEM_TRACE_EVENTS")), native())


class Tracer(HostTracer):
    """The host's part of a PE's events.

    In the place of the ring there may be counters, to which events are added: then `calls` are
    those of `counter_instrumentation`.
    """

    pending = False  # for `diagnosis.termination.Late`: nothing is
    long = LONG

    def __init__(self, ring: Ring | Counters, calls: SimpleNamespace) -> None:
        super().__init__()
        self._ring, self._calls, self.address = ring, calls, ring.address
        self.counts = isinstance(ring, Counters)
        self.facts = Facts(ring, self.now)
        self._seen = 0, 0  # events there had been at the last looks for texts
        self._look_at_clocks(0)
        form_hooks[:] = [self._form_made]

    def begin(self, world: World) -> None:
        """A job begins, of this process."""
        self._world, self.teams_in = world, world.teams_in
        self.allocated = list
        world.native["trace"] = self.address
        hooks = self._calls.hooks
        of_process["own"] = self.address
        of_process["block_ended"] = hooks.get("block_ended", 0)
        of_process["ended"], of_process["began"] = hooks["run_ended"], hooks["run_began"]

    def _form_made(self, form: Form) -> None:
        form.launch["label"] = self.facts.name(form.name)

    def mapped(self) -> None:
        self._ring.describe(heap_bytes=self._world.heap_bytes, init=self.now())
        for team in (TEAM_SHARED, TEAM_NODE):
            self.facts.team(int(team), [*self._world.job.node])

    # --- the host

    def now(self) -> int:
        return int(self._calls.now())

    def append(
        self, kind: int, pe: int, at: int, value: int, nbytes: int, site: int, thread: int,
        began: int, ended: int,
    ) -> int:  # fmt: skip
        number = self._calls.append(
            self.address, kind, pe, at, value, nbytes, site, thread, began, ended, 0, 0
        )
        return int(number)

    def end(self, number: int) -> None:
        self._calls.close(self.address, number)

    def where(self, array: Any) -> int | None:
        return address_of(array) - self._world.heap if isinstance(array, np.ndarray) else None

    def launched(self, kernel: str) -> None:
        name, site = self.facts.name(kernel), self.facts.site(user_place())
        self._calls.launched(self.address, name, site, self.thread())

    # --- what numbers mean

    def late(self) -> None:
        """Write down what numbers in new events mean, and what clocks show: ten times a second.

        An event that had a number at the last look, but was not yet written, is looked at again.
        """
        sites, names, n = self._ring.texts_since(self._seen[0])
        self._seen = self._seen[1], n
        for what, addresses in (("site", sites), ("name", names)):
            for address in np.unique(addresses).tolist():
                self.facts.of_kernel(what, address, partial(_text_at, address))
        self._look_at_clocks(1)

    def _look_at_clocks(self, which: int) -> None:
        """Note what both clocks show at one moment: of some looks, the one that took least."""
        header, best = self._ring.header, 1 << 62
        for _ in range(5):
            before = time.monotonic_ns()
            shown = self.now()
            after = time.monotonic_ns()
            if after - before < best:
                best, pair = after - before, (shown, (before + after) // 2)
        header["ticks"][0, which], header["ns"][0, which] = pair

    def stats(self) -> Stats | None:
        """The counters, if there are some."""
        if not isinstance(self._ring, Counters):
            return None
        self._look_at_clocks(1)
        return self._ring.stats()

    def close(self) -> None:
        of_process["began"] = of_process["ended"] = of_process["block_ended"] = 0
        self.late()
        self._ring.describe(end=self.now())
        self._ring.give_back()


def _text_at(address: int) -> str:
    return ctypes.string_at(address).decode()
