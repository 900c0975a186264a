"""What a PE that is traced records on its host: operations, meetings, launches; names and lines."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache, partial
from pathlib import Path
from threading import get_ident
from typing import Any

import numpy as np

from gpushmem import settings
from gpushmem.artifacts.arguments import address_of
from gpushmem.backends.cpu import hook
from gpushmem.backends.cpu.world import World
from gpushmem.backends.hostcalls import nbytes_of
from gpushmem.job.job import current
from gpushmem.lines import Place, user_place
from gpushmem.ops import TEAM_WORLD, Op
from gpushmem.simt.compiler import observer
from gpushmem.simt.run.kernel import Form, Running, form_hooks
from gpushmem.simt.run.queue import of_process
from gpushmem.trace.facts import Facts
from gpushmem.trace.kernels import native
from gpushmem.trace.ring import CALL, COMPILE, KIND_OF, LAUNCH, MEET, NO_PE, Ring

__all__ = ["Tracer", "trace_kernels", "tracer"]

LONG = 2_000_000  # ticks, about a millisecond
TRACED = "trace"  # a name of kernels' observers


def trace_kernels() -> None:
    """Let kernels be traced, if the job is; raises `ShmemError` if it is too late for that."""
    on = settings.is_set("GPUSHMEM_TRACE")
    hook.refuse_change(TRACED, "the trace", on)
    if on and hook.TRACER not in hook.OBSERVERS:
        hook.OBSERVERS.append(hook.TRACER)
        observer.observe_also(TRACED)
    elif not on and hook.TRACER in hook.OBSERVERS:
        hook.OBSERVERS.remove(hook.TRACER)
        observer.observe_also(TRACED, False)


def tracer(world: World) -> Tracer | None:
    """The tracer of this PE, if the job is traced."""
    folder = settings.get("GPUSHMEM_TRACE")
    if not folder:
        return None
    made = _of_process(Path(folder))
    made.begin(world)
    return made


@cache
def _of_process(folder: Path) -> Tracer:
    """The process's tracer: one, however often it calls `init`."""
    job = current()
    pe, n_pes = (0, 1) if job is None else (job.my_pe, job.n_pes)
    return Tracer(Ring(folder, pe, n_pes, settings.get("GPUSHMEM_TRACE_EVENTS")))


class Tracer:
    """Records the host's part of a PE's events, and what numbers in all of them mean."""

    pending = False  # for `diagnosis.termination.Late`: nothing is

    def __init__(self, ring: Ring) -> None:
        self._ring, self._calls, self.address = ring, native(), ring.address
        self._facts = Facts(ring, self._calls.now)
        self._seen = 0  # events whose sites are known
        self._threads: dict[int, int] = {}
        self._look_at_clocks(0)
        form_hooks.append(self._form_made)

    def begin(self, world: World) -> None:
        """A job begins, of this process."""
        self._world = world
        self.allocated: Callable[[], Sequence[Any]] = list
        world.native["trace"] = self.address
        hooks = self._calls.hooks
        of_process["own"], of_process["block_ended"] = self.address, hooks["block_ended"]
        of_process["ended"], of_process["began"] = hooks["run_ended"], hooks["run_began"]

    def _form_made(self, form: Form) -> None:
        form.launch["label"] = self._facts.name(form.name)

    def mapped(self) -> None:
        """The heap has been mapped."""
        self._ring.describe(heap_bytes=self._world.heap_bytes, init=self._calls.now())

    # --- the host

    def meeting(self, what: str) -> AbstractContextManager[None]:
        """All PEs make this call, and wait for each other in it."""
        return self._during(MEET, self._facts.name(what))

    def calling(self, what: str) -> AbstractContextManager[None]:
        """The host makes a call that waits, or takes a while."""
        return self._during(CALL, self._facts.name(what))

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
        ended = self._calls.now()
        for effect in effects:
            at = address_of(arguments[effect.array]) - self._world.heap
            nbytes = nbytes_of(effect, arguments)
            self._append(KIND_OF[op.name], pe, at, value, nbytes, place, began, ended)
        if not effects:
            self._append(KIND_OF[op.name], pe, -1, value, 0, place, began, ended)

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
        now = self._calls.now()
        self._append(LAUNCH, value=self._facts.name(launch.name), began=now, ended=now)

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
        who = self._threads.setdefault(get_ident(), len(self._threads))
        value = ctypes.c_int64(value).value
        return self._calls.append(
            self.address, kind, pe, at, value, nbytes, self._facts.site(place or user_place()), who,
            began or self._calls.now(), ended, 0, 0,
        )  # fmt: skip

    # --- what numbers mean

    def late(self) -> None:
        """Write down what new events' sites mean, and what the clocks show: ten times a second."""
        sites, self._seen = self._ring.sites_since(self._seen)
        for site in np.unique(sites).tolist():
            if site > 0:
                self._facts.kernel_site(site, partial(_text_at, site))
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

    def close(self) -> None:
        """The PE's part of the job is over; it may begin another."""
        of_process["began"] = of_process["ended"] = of_process["block_ended"] = 0
        self.late()
        self._ring.describe(end=self._calls.now())


def _text_at(address: int) -> str:
    return ctypes.string_at(address).decode()
