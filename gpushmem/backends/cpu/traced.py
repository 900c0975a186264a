"""What a PE that is traced records on its host: operations, meetings, launches; names and lines."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache, partial
from pathlib import Path
from threading import get_ident
from types import SimpleNamespace
from typing import Any

import numpy as np

from gpushmem import settings
from gpushmem.artifacts.arguments import address_of
from gpushmem.backends.cpu import hook
from gpushmem.backends.cpu.world import World
from gpushmem.backends.hostcalls import nbytes_of
from gpushmem.errors import ArgumentError
from gpushmem.job.job import current
from gpushmem.lines import Place, user_place
from gpushmem.ops import TEAM_NODE, TEAM_SHARED, TEAM_WORLD, Op
from gpushmem.simt.launch import Form, Running, form_hooks, of_process
from gpushmem.simt.observe import observe_also
from gpushmem.trace import counting
from gpushmem.trace.counters import Counters, Stats
from gpushmem.trace.facts import Facts
from gpushmem.trace.kernels import native
from gpushmem.trace.ring import CALL, COMPILE, KIND_OF, MEET, NO_PE, RANGE, Ring

__all__ = ["Tracer", "trace_kernels", "tracer"]

LONG = 2_000_000  # ticks, about a millisecond
# Setting -> a name of kernels' observers, the observer, and what errors call it.
WAYS = {
    "GPUSHMEM_TRACE": ("trace", hook.TRACER, "the trace"),
    "GPUSHMEM_STATS": ("stats", hook.COUNTER, "counters"),
}


def trace_kernels() -> None:
    """Let kernels be traced, or calls in them counted, if the job is.

    Raises `ArgumentError` if it is to be both, `ShmemError` if it is too late for a change.
    """
    wanted = [name for name in WAYS if settings.is_set(name)]
    if len(wanted) > 1:
        raise ArgumentError(f"{' and '.join(wanted)}: set one of them; a trace has the counters")
    for name, (mark, watcher, what) in WAYS.items():
        on = name in wanted
        hook.refuse_change(mark, what, on)
        if on and watcher not in hook.OBSERVERS:
            hook.OBSERVERS.append(watcher)
            observe_also(mark)
        elif not on and watcher in hook.OBSERVERS:
            hook.OBSERVERS.remove(watcher)
            observe_also(mark, False)


def tracer(world: World) -> Tracer | None:
    """What traces this PE, or counts what it does, if the job is to be."""
    name = next((name for name in WAYS if settings.is_set(name)), None)
    if name is None:
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
        return Tracer(Counters(folder, pe, n_pes), counting.native())
    return Tracer(Ring(folder, pe, n_pes, settings.get("GPUSHMEM_TRACE_EVENTS")), native())


class Tracer:
    """Records the host's part of a PE's events, and what numbers in all of them mean.

    In the place of the ring there may be counters, to which events are added: then `calls` are
    those of `counting`.
    """

    pending = False  # for `diagnosis.termination.Late`: nothing is

    def __init__(self, ring: Ring | Counters, calls: SimpleNamespace) -> None:
        self._ring, self._calls, self.address = ring, calls, ring.address
        self._facts = Facts(ring, self._calls.now)
        self._seen = 0, 0  # events there had been at the last looks for texts
        self._threads: dict[int, int] = {}
        self._look_at_clocks(0)
        form_hooks[:] = [self._form_made]

    def begin(self, world: World) -> None:
        """A job begins, of this process."""
        self._world = world
        self.allocated: Callable[[], Sequence[Any]] = list
        world.native["trace"] = self.address
        hooks = self._calls.hooks
        of_process["own"] = self.address
        of_process["block_ended"] = hooks.get("block_ended", 0)
        of_process["ended"], of_process["began"] = hooks["run_ended"], hooks["run_began"]

    def _form_made(self, form: Form) -> None:
        form.launch["label"] = self._facts.name(form.name)

    def mapped(self) -> None:
        """The heap has been mapped."""
        self._ring.describe(heap_bytes=self._world.heap_bytes, init=self._calls.now())
        for team in (TEAM_SHARED, TEAM_NODE):
            self._facts.team(int(team), [*self._world.job.node])

    # --- the host

    def meeting(self, what: str) -> AbstractContextManager[None]:
        """All PEs make this call, and wait for each other in it."""
        return self._during(MEET, self._facts.name(what))

    def calling(self, what: str) -> AbstractContextManager[None]:
        """The host makes a call that waits, or takes a while."""
        return self._during(CALL, self._facts.name(what))

    def ranging(self, name: str) -> AbstractContextManager[None]:
        """The program names what it does."""
        return self._during(RANGE, self._facts.name(name))

    @contextmanager
    def _during(self, kind: int, value: int) -> Iterator[None]:
        number = self._append(kind, value=value)
        try:
            yield
        finally:
            self._calls.close(self.address, number)

    def call(self, op: Op, arguments: dict[str, Any], run: Callable[[], Any]) -> Any:
        """An operation that the host performs itself."""
        if op.facts.meets:
            with self._during(KIND_OF[op.name], int(arguments.get("team", TEAM_WORLD))):
                result = run()
        else:
            place, began = user_place(), self._calls.now()
            result = run()
            self._performed(op, arguments, place, began)
        for team, pes in self._world.teams_in(result):
            self._facts.team(team, pes)
        return result

    def queued(
        self, op: Op, arguments: dict[str, Any], run: Callable[[], Any], _: int
    ) -> Callable[[], Any]:
        """An operation that the host queues on a stream."""
        place = user_place()

        def queued() -> Any:
            began = self._calls.now()
            result = run()
            self._performed(op, arguments, place, began)
            return result

        return queued

    def _performed(self, op: Op, arguments: dict[str, Any], place: Place, began: int) -> None:
        pe, value = int(arguments.get("pe", NO_PE)), arguments.get("value", 0)
        value = int(value) if isinstance(value, int | np.integer) else 0
        effects = [
            effect
            for effect in op.facts.effects
            if op.arrays[effect.array].symmetric and isinstance(arguments[effect.array], np.ndarray)
        ]
        ended, heap = self._calls.now(), self._world.heap
        events = [
            (address_of(arguments[effect.array]) - heap, nbytes_of(effect, arguments))
            for effect in effects
        ]
        if not events or isinstance(self._ring, Counters):  # which count calls
            events = [(-1, sum(nbytes for _, nbytes in events))]
        for at, nbytes in events:
            self._append(KIND_OF[op.name], pe, at, value, nbytes, place, began, ended)

    @contextmanager
    def preparing(self, kernel: str) -> Iterator[None]:
        """The host prepares a launch, and compiles the kernel unless it is known."""
        began = self._calls.now()
        yield
        ended = self._calls.now()
        if ended - began > LONG:
            self._append(COMPILE, value=self._facts.name(kernel), began=began, ended=ended)

    def submitted(self, launch: Running) -> None:
        """The host queues a kernel."""
        name, site = self._facts.name(launch.name), self._facts.site(user_place())
        self._calls.launched(self.address, name, site, self._thread())

    def _append(
        self,
        kind: int,
        pe: int = NO_PE,
        at: int = -1,
        value: int = 0,
        nbytes: int = 0,
        place: Place | None = None,
        began: int = 0,
        ended: int = 0,
    ) -> int:
        """A new event of the host; it begins now if nothing else is said. Returns its number."""
        value, site = ctypes.c_int64(value).value, self._facts.site(place or user_place())
        return self._calls.append(
            self.address, kind, pe, at, value, nbytes, site, self._thread(),
            began or self._calls.now(), ended, 0, 0,
        )  # fmt: skip

    def _thread(self) -> int:
        """The number of the calling thread."""
        return self._threads.setdefault(get_ident(), len(self._threads))

    # --- what numbers mean

    def late(self) -> None:
        """Write down what numbers in new events mean, and what clocks show: ten times a second.

        An event that had a number at the last look, but was not yet written, is looked at again.
        """
        sites, names, n = self._ring.texts_since(self._seen[0])
        self._seen = self._seen[1], n
        for what, addresses in (("site", sites), ("name", names)):
            for address in np.unique(addresses).tolist():
                self._facts.of_kernel(what, address, partial(_text_at, address))
        self._look_at_clocks(1)

    def _look_at_clocks(self, which: int) -> None:
        """Note what both clocks show at one moment: of some looks, the one that took least."""
        header, best = self._ring.header, 1 << 62
        for _ in range(5):
            before = time.monotonic_ns()
            shown = self._calls.now()
            after = time.monotonic_ns()
            if after - before < best:
                best, pair = after - before, (shown, (before + after) // 2)
        header["ticks"][0, which], header["ns"][0, which] = pair

    def name_arrays(self) -> None:
        """Write down which arrays are new."""
        self._facts.arrays(self.allocated())

    def released(self, offset: int) -> None:
        """An array has been freed."""
        self._facts.released(offset)

    def stats(self) -> Stats | None:
        """The counters, if there are some."""
        if not isinstance(self._ring, Counters):
            return None
        self._look_at_clocks(1)
        return self._ring.stats()

    def close(self) -> None:
        """The PE's part of the job is over; it may begin another."""
        of_process["began"] = of_process["ended"] = of_process["block_ended"] = 0
        self.late()
        self._ring.describe(end=self._calls.now())
        self._ring.give_back()


def _text_at(address: int) -> str:
    return ctypes.string_at(address).decode()
