"""What a PE on a GPU records: events of its host, and those that its kernels leave on the GPU.

The host's events go to the PE's ring; times are nanoseconds of CLOCK_MONOTONIC. A thread copies
what kernels have recorded to a second ring ten times a second, on a stream of its own: a job that
hangs, or is killed, leaves what it had done. `Drain` knows how; times there are the GPU's.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from cuda.bindings import driver

from gpushmem import settings
from gpushmem.backends.host.event_readers import Reader
from gpushmem.backends.host.tracer import HostTracer, TeamsIn
from gpushmem.backends.nvshmem.gpu.arrays import GpuArray
from gpushmem.backends.nvshmem.gpu.device import Device
from gpushmem.backends.nvshmem.gpu.driver_errors import check
from gpushmem.backends.nvshmem.trace.drain import AT, Drain, Meaning, new_header
from gpushmem.errors import ShmemError
from gpushmem.trace.event_facts import Facts
from gpushmem.trace.ring import EVENT, LAUNCH, Ring

__all__ = ["Tracer", "Untraced", "tracer"]

LONG = 1_000_000  # nanoseconds
OFTEN = 0.1  # seconds between looks
PIECE = 1 << 20  # bytes of one copy
LOOKS = 10  # at both clocks
FAR = 1_000_000_000  # nanoseconds between looks at the clocks, from which on they tell a rate
now = time.monotonic_ns


class Untraced(Reader):
    """Records nothing."""

    address = 0  # of the ring on the GPU

    def began(
        self, heap: int, heap_bytes: int, clock: Callable[[], int], teams_in: TeamsIn
    ) -> None:
        """The heap is there. `clock()` is the GPU's time, in nanoseconds, when it is idle."""

    def loaded(self, about: dict[str, Any]) -> None:
        """A kernel that is traced has been loaded; what numbers in its events mean."""

    def idle(self) -> None:
        """No kernel of this PE runs."""


def tracer(device: Device, pe: int, n_pes: int) -> Untraced:
    """What records this PE's events, if the job is traced."""
    folder = settings.get("GPUSHMEM_TRACE")
    return _of_process(device, Path(folder), pe, n_pes) if folder else Untraced()


@cache
def _of_process(device: Device, folder: Path, pe: int, n_pes: int) -> Tracer:
    """The process's tracer: one, however often it calls `init`."""
    return Tracer(device, folder, pe, n_pes, settings.get("GPUSHMEM_TRACE_EVENTS"))


class Tracer(HostTracer, Untraced):
    """Records the events of a PE."""

    long = LONG

    def __init__(self, device: Device, folder: Path, pe: int, n_pes: int, most: int) -> None:
        super().__init__()
        self._ring, self._adding = Ring(folder, pe, n_pes, most), threading.Lock()
        self.facts = Facts(self._ring, now)
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

    def began(
        self, heap: int, heap_bytes: int, clock: Callable[[], int], teams_in: TeamsIn
    ) -> None:
        self.teams_in = teams_in
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

    def now(self) -> int:
        return now()

    def append(
        self, kind: int, pe: int, at: int, value: int, nbytes: int, site: int, thread: int,
        began: int, ended: int,
    ) -> int:  # fmt: skip
        new = np.zeros(1, EVENT)
        new["began"], new["ended"], new["site"], new["block"] = began, ended, site, thread
        new["at"], new["value"], new["nbytes"] = at, value, nbytes
        new["kind"], new["pe"] = kind, pe
        with self._adding:
            return self._ring.extend(new)

    def end(self, number: int) -> None:
        with self._adding:
            self._ring.event(number)["ended"] = now()

    def where(self, array: Any) -> int | None:
        return array.address - self._drain.heap if isinstance(array, GpuArray) else None

    def launched(self, kernel: str) -> None:
        self._note(LAUNCH, value=self.facts.name(kernel), ended=now())

    # --- what numbers mean

    def loaded(self, about: dict[str, Any]) -> None:
        for what, number, text in about["texts"]:
            self.facts.of_kernel(what, number, partial(str, text))
        name = self.facts.name(about["name"])
        self._drain.meanings[about["kernel"]] = Meaning(name, about["waits"])

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
