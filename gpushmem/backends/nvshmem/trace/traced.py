"""What a PE on a GPU records: events of its host, and those that its kernels leave on the GPU.

The host's events go to the PE's ring; times are nanoseconds of CLOCK_MONOTONIC. A thread copies
what kernels have recorded to a second ring ten times a second, on a stream of its own: a job that
hangs, or is killed, leaves what it had done. `Drain` knows how; times there are the GPU's.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cache, partial
from pathlib import Path
from threading import get_ident
from typing import Any

import numpy as np
from cuda.bindings import driver

from gpushmem import settings
from gpushmem.backends.hostcalls import nbytes_of
from gpushmem.backends.nvshmem.gpu.arrays import GpuArray
from gpushmem.backends.nvshmem.gpu.device import Device
from gpushmem.backends.nvshmem.gpu.status import check
from gpushmem.backends.nvshmem.trace.drain import AT, Drain, Meaning, new_header
from gpushmem.errors import ShmemError
from gpushmem.lines import Place, user_place
from gpushmem.ops import TEAM_WORLD, Op
from gpushmem.ops.team import Team
from gpushmem.trace.facts import Facts
from gpushmem.trace.ring import CALL, COMPILE, EVENT, KIND_OF, LAUNCH, MEET, NO_PE, RANGE, Ring

__all__ = ["Tracer", "Untraced", "tracer"]

LONG = 1_000_000  # nanoseconds
OFTEN = 0.1  # seconds between looks
PIECE = 1 << 20  # bytes of one copy
LOOKS = 10  # at both clocks
FAR = 1_000_000_000  # nanoseconds between looks at the clocks, from which on they tell a rate
now = time.monotonic_ns


class Untraced:
    """Records nothing."""

    address = 0  # of the ring on the GPU
    nothing = nullcontext()

    def began(self, heap: int, heap_bytes: int, clock: Callable[[], int]) -> None:
        """The heap is there. `clock()` is the GPU's time, in nanoseconds, when it is idle."""

    def meeting(self, what: str) -> AbstractContextManager[None]:
        """All PEs make this call, and wait for each other in it."""
        return self.nothing

    def calling(self, what: str) -> AbstractContextManager[None]:
        """The host makes a call that waits, or takes a while."""
        return self.nothing

    def ranging(self, name: str) -> AbstractContextManager[None]:
        """The program names what it does."""
        return self.nothing

    def preparing(self, kernel: str) -> AbstractContextManager[None]:
        """The host prepares a launch, and compiles the kernel unless it is known."""
        return self.nothing

    def launching(self, kernel: str, go: Callable[[], None]) -> Callable[[], None]:
        """A launch that is recorded when it is made."""
        return go

    def call(self, op: Op, arguments: dict[str, Any], run: Callable[[], Any]) -> Any:
        """An operation of the host."""
        return run()

    def teams(self, result: Any, members: Callable[[int], list[int]]) -> None:
        """An operation has returned this: it may be teams, which it has made."""

    def loaded(self, about: dict[str, Any]) -> None:
        """A kernel that is traced has been loaded; what numbers in its events mean."""

    def arrays(self, allocated: Callable[[], Sequence[Any]]) -> None:
        """There may be new ones among all symmetric arrays."""

    def released(self, offset: int) -> None:
        """An array has been freed."""

    def idle(self) -> None:
        """No kernel of this PE runs."""

    def close(self) -> None:
        """The PE's part of the job is over; it may begin another."""


def tracer(device: Device, pe: int, n_pes: int) -> Untraced:
    """What records this PE's events, if the job is traced."""
    folder = settings.get("GPUSHMEM_TRACE")
    return _of_process(device, Path(folder), pe, n_pes) if folder else Untraced()


@cache
def _of_process(device: Device, folder: Path, pe: int, n_pes: int) -> Tracer:
    """The process's tracer: one, however often it calls `init`."""
    return Tracer(device, folder, pe, n_pes, settings.get("GPUSHMEM_TRACE_EVENTS"))


class Tracer(Untraced):
    """Records the events of a PE."""

    def __init__(self, device: Device, folder: Path, pe: int, n_pes: int, most: int) -> None:
        self._ring, self._adding = Ring(folder, pe, n_pes, most), threading.Lock()
        self._facts = Facts(self._ring, now)
        self._threads: dict[int, int] = {}
        self._ring.header["ticks"] = self._ring.header["ns"] = now()
        on_gpu = self._on_gpu = Ring(folder, pe, n_pes, most, gpu=True)
        self._header = on_gpu.header
        copier = Copier(device)
        memory = device.array((AT + most * EVENT.itemsize,), np.dtype(np.uint8))
        self._memory, self.address = memory, memory.address
        copier.clear(self.address, memory.nbytes)
        device.write(memory[:AT], new_header(self.address, most).view(np.uint8))
        self._drain, self._looking = Drain(copier.read, self.address, on_gpu), threading.Lock()
        self._device, self._over = device, threading.Event()

    def began(self, heap: int, heap_bytes: int, clock: Callable[[], int]) -> None:
        self._ring.describe(heap_bytes=heap_bytes, init=now())
        self._drain.heap, self._clock = heap, clock
        self._look_at_clocks()
        self._over.clear()
        self._watch = threading.Thread(target=self._look_often, daemon=True)
        self._watch.start()

    def close(self) -> None:
        self._over.set()
        self._watch.join()
        with self._looking:
            self._drain.end()
        self._look_at_clocks()
        self._ring.describe(end=now())
        for ring in (self._ring, self._on_gpu):
            ring.give_back()

    # --- the host

    def meeting(self, what: str) -> AbstractContextManager[None]:
        return self._during(MEET, self._facts.name(what))

    def calling(self, what: str) -> AbstractContextManager[None]:
        return self._during(CALL, self._facts.name(what))

    def ranging(self, name: str) -> AbstractContextManager[None]:
        return self._during(RANGE, self._facts.name(name))

    @contextmanager
    def _during(self, kind: int, value: int) -> Iterator[None]:
        number = self._append(kind, value=value, ended=0)
        try:
            yield
        finally:
            with self._adding:
                self._ring.event(number)["ended"] = now()

    @contextmanager
    def preparing(self, kernel: str) -> Iterator[None]:
        began = now()
        yield
        if now() - began > LONG:
            self._append(COMPILE, value=self._facts.name(kernel), began=began)

    def launching(self, kernel: str, go: Callable[[], None]) -> Callable[[], None]:
        name = self._facts.name(kernel)

        def launch() -> None:
            self._append(LAUNCH, value=name)
            go()

        return launch

    def call(self, op: Op, arguments: dict[str, Any], run: Callable[[], Any]) -> Any:
        if op.facts.meets:
            team = int(arguments.get("team", TEAM_WORLD))
            with self._during(KIND_OF[op.name], team):
                return run()
        if op.facts.waits_for:
            with self.calling(op.name):
                return run()
        place, began = user_place(), now()
        result = run()
        if op.facts.effects or op.facts.orders:
            self._performed(op, arguments, place, began)
        return result

    def _performed(self, op: Op, arguments: dict[str, Any], place: Place, began: int) -> None:
        pe, value = int(arguments.get("pe", NO_PE)), arguments.get("value", 0)
        value = int(value) if isinstance(value, int | np.integer) else 0
        add = partial(self._append, KIND_OF[op.name], pe, place=place, began=began, ended=now())
        effects = [
            effect
            for effect in op.facts.effects
            if op.arrays[effect.array].symmetric and isinstance(arguments[effect.array], GpuArray)
        ]
        for effect in effects:
            at = arguments[effect.array].address - self._drain.heap
            add(at=at, value=value, nbytes=nbytes_of(effect, arguments))
        if not effects:
            add(value=value)

    def _append(
        self,
        kind: int,
        pe: int = NO_PE,
        at: int = -1,
        value: int = 0,
        nbytes: int = 0,
        place: Place | None = None,
        began: int = 0,
        ended: int | None = None,
    ) -> int:
        """A new event of the host, from now to now if nothing else is said. Returns its number."""
        began = began or now()
        new, value = np.zeros(1, EVENT), ctypes.c_int64(value).value
        new["began"], new["ended"] = began, now() if ended is None else ended
        new["site"] = self._facts.site(place or user_place())
        new["at"], new["value"], new["nbytes"] = at, value, nbytes
        new["kind"], new["pe"] = kind, pe
        with self._adding:
            new["block"] = self._threads.setdefault(get_ident(), len(self._threads))
            return self._ring.extend(new)

    # --- what numbers mean

    def teams(self, result: Any, members: Callable[[int], list[int]]) -> None:
        for team in result if isinstance(result, tuple) else (result,):
            if isinstance(team, Team) and team >= 0:
                self._facts.team(int(team), members(team))

    def loaded(self, about: dict[str, Any]) -> None:
        for what, number, text in about["texts"]:
            self._facts.of_kernel(what, number, partial(str, text))
        name = self._facts.name(about["name"])
        self._drain.meanings[about["kernel"]] = Meaning(name, about["waits"])

    def arrays(self, allocated: Callable[[], Sequence[Any]]) -> None:
        self._facts.arrays(allocated())

    def released(self, offset: int) -> None:
        self._facts.released(offset)

    # --- the GPU

    def idle(self) -> None:
        with self._looking:
            self._drain.look(idle=True)

    def _look_often(self) -> None:
        self._device.enter()
        # Other threads may be capturing streams, which this one has nothing to do with.
        relaxed = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        check(driver.cuThreadExchangeStreamCaptureMode(relaxed), "the trace")
        with suppress(ShmemError):  # a kernel has failed, which who waits for it is told
            while not self._over.wait(OFTEN):
                with self._looking:
                    self._drain.look()

    def _look_at_clocks(self) -> None:
        """Note what both clocks show at one moment: of some looks, the one that took least."""
        best = 1 << 62
        for _ in range(LOOKS):
            before = now()
            shown = self._clock()
            after = now()
            if after - before < best:
                best, pair = after - before, (shown, (before + after) // 2)
        first = int(self._header["ns"][0, 0])
        if not first or pair[1] - first > FAR:  # else they tell less than that the GPU's counts ns
            which = int(first != 0)
            self._header["ticks"][0, which], self._header["ns"][0, which] = pair


class Copier:
    """Copies the GPU's memory to the host's while kernels run."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._stream = device.new_stream().cuda
        portable = driver.CU_MEMHOSTALLOC_PORTABLE
        self._pinned = int(check(driver.cuMemHostAlloc(PIECE, portable), "the trace"))

    def clear(self, address: int, nbytes: int) -> None:
        """Fill memory with zeros."""
        self._device.enter()
        check(driver.cuMemsetD8Async(address, 0, nbytes, self._stream.handle), "the trace")
        self._wait()

    def read(self, address: int, nbytes: int) -> np.ndarray[Any, Any]:
        """A copy of memory; by one thread at a time."""
        self._device.enter()
        copy = np.empty(nbytes, np.uint8)
        for at in range(0, nbytes, PIECE):
            part = copy[at : at + PIECE]
            queued = driver.cuMemcpyDtoHAsync(
                self._pinned, address + at, part.nbytes, self._stream.handle
            )
            check(queued, "the trace")
            self._wait()
            ctypes.memmove(part.ctypes.data, self._pinned, part.nbytes)
        return copy

    def _wait(self) -> None:
        busy = driver.CUresult.CUDA_ERROR_NOT_READY
        while (status := driver.cuStreamQuery(self._stream.handle))[0] == busy:
            time.sleep(20e-6)
        check(status, "the trace")
