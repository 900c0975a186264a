"""The CUDA driver's functions that numba-cuda's host side calls, for the CPU as the device.

Each method of `Driver` replaces the function of its name; it returns the result alone and raises
`CudaAPIError`, as numba-cuda's wrappers do. Device memory is ordinary memory of its own: arrays
are copied to it and back, so a program that forgets a copy fails here as on a GPU. Work is queued
on `stream.Stream`s with CUDA's ordering; copies to and from pageable memory are staged, as CUDA
does, so they may be asynchronous only for pinned memory.

Source: CUDA Driver API reference, 12.x; the section on API synchronization behaviour.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from threading import Event as Flag
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
from cuda.bindings import driver as binding
from numba.cuda.cudadrv.driver import CudaAPIError
from numba.cuda.cudadrv.error import CudaDriverError

from gpushmem import settings
from gpushmem.artifacts.argument_packing import address_of
from gpushmem.artifacts.gpu_limits import MAX_STATIC_SHARED, MAX_THREADS, REGISTERS
from gpushmem.artifacts.gpu_model import LANES, modelled
from gpushmem.artifacts.guarded_memory import GUARD, guarded, spend
from gpushmem.artifacts.launch_shape import AXES, LIMITS
from gpushmem.errors import KernelError
from gpushmem.simt.run import queue_observer
from gpushmem.simt.run.kernel import Running
from gpushmem.simt.run.queue_observer import Work
from gpushmem.simt.run.stream import Copy, Device, Stream

__all__ = ["TOOLKIT", "CoreDevice", "Driver"]

Code = binding.CUresult
UNCHECKED = 16 << 20  # bytes allocated without a look at how many are free: that takes 0.1 ms
TOOLKIT = 12, 8  # the version of CUDA that driver and toolkit say they are
LEGACY, PER_THREAD = 1, 2  # stream handles that mean a default stream
CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)

# Of all GPUs; other attributes are 1.
ATTRIBUTES = {
    "MAX_THREADS_PER_BLOCK": MAX_THREADS,
    **{
        f"MAX_{what.upper()}_DIM_{axis.upper()}": limit
        for what, limits in LIMITS.items()
        for axis, limit in zip(AXES, limits, strict=True)
    },
    "MAX_SHARED_MEMORY_PER_BLOCK": MAX_STATIC_SHARED,
    "MAX_REGISTERS_PER_BLOCK": REGISTERS,
    "MAX_REGISTERS_PER_MULTIPROCESSOR": REGISTERS,
    "WARP_SIZE": LANES,
    "TOTAL_CONSTANT_MEMORY": 64 * 1024,
    "PCI_DOMAIN_ID": 0,
    "PCI_DEVICE_ID": 0,
    "INTEGRATED": 0,
    "KERNEL_EXEC_TIMEOUT": 0,
    "TCC_DRIVER": 0,
}


def _of_model() -> dict[str, int]:
    """The attributes of the modelled GPU."""
    gpu = modelled()
    return {
        "COMPUTE_CAPABILITY_MAJOR": gpu.capability[0],
        "COMPUTE_CAPABILITY_MINOR": gpu.capability[1],
        "MULTIPROCESSOR_COUNT": gpu.sms,
        "MAX_THREADS_PER_MULTIPROCESSOR": gpu.limits.threads,
        "MAX_BLOCKS_PER_MULTIPROCESSOR": gpu.limits.blocks,
        "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": gpu.limits.shared,
        "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": gpu.limits.max_shared,
        "RESERVED_SHARED_MEMORY_PER_BLOCK": gpu.limits.reserved,
        "L2_CACHE_SIZE": gpu.l2,
        "CLOCK_RATE": gpu.clock,
        "MEMORY_CLOCK_RATE": gpu.memory_clock,
        "GLOBAL_MEMORY_BUS_WIDTH": gpu.bus,
        "SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO": gpu.double_ratio,
    }


@dataclass
class Event:
    """A point in a stream."""

    done: Flag = field(default_factory=Flag)
    time: float = 0.0
    number: int = 0  # by which the witness knows it

    def __post_init__(self) -> None:
        self.done.set()


class StreamHandle(int):
    """A stream's number; numba-cuda wants its `value`, too."""

    @property
    def value(self) -> int:
        return int(self)


class CoreDevice:
    """The part of `cuda.core.Device` that numba-cuda uses."""

    def __init__(self, device_id: int) -> None:
        count = settings.get("GPUSHMEM_SIM_DEVICES")
        if not 0 <= device_id < count:
            raise fail(
                "INVALID_DEVICE",
                f"there is no device {device_id}: there are {count}; GPUSHMEM_SIM_DEVICES, or "
                "gpushmem sim --devices, says how many",
            )
        self.device_id = device_id
        self.compute_capability = modelled().capability
        self.name = f"gpushmem CPU engine, as {modelled().name}"
        self.uuid = f"00000000-0000-0000-0000-{device_id:012}"
        self.context = SimpleNamespace(handle=binding.CUcontext(context_of(device_id)))

    def set_current(self) -> None:
        """Nothing to do: numba-cuda pushes the context."""


def context_of(device: int) -> int:
    """The handle of a device's context."""
    return device + 1


def fail(code: str, why: str) -> CudaAPIError:
    """A driver error with a reason."""
    result = getattr(Code, f"CUDA_ERROR_{code}")
    return CudaAPIError(result, f"{result.name}: {why}")


class Driver:
    """The driver's functions; one instance per patch."""

    def __init__(self) -> None:
        self.device = Device()
        self._pid = 0  # of the process that has used the device
        self._contexts = threading.local()
        self._memory: dict[int, Any] = {}  # device, pinned and managed
        self._device_bytes: dict[int, int] = {}
        self._allocated = UNCHECKED  # bytes, since the last look at how many are free
        self._pinned: dict[int, int] = {}  # host address -> bytes
        self._streams: dict[int, Stream] = {}
        self._last: dict[int, int] = {}  # stream -> what the witness has seen last
        self._events: dict[int, Event] = {}
        self._handles = iter(range(16, 2**62))

    # --- devices and contexts

    def cuInit(self, flags: int) -> None:
        pass

    def cuDriverGetVersion(self) -> int:
        return 1000 * TOOLKIT[0] + 10 * TOOLKIT[1]

    def cuDeviceGetCount(self) -> int:
        count: int = settings.get("GPUSHMEM_SIM_DEVICES")
        return count

    def cuDeviceGetAttribute(self, attribute: Any, device: int) -> int:
        name: str = attribute.name.removeprefix("CU_DEVICE_ATTRIBUTE_")
        if name == "PCI_BUS_ID":
            return int(device)
        return (ATTRIBUTES | _of_model()).get(name, 1)

    def cuDeviceCanAccessPeer(self, device: int, peer: Any) -> int:
        return 0

    @property
    def _current(self) -> list[int]:
        """The calling thread's stack of contexts; at first that of device 0 is in it."""
        if not hasattr(self._contexts, "stack"):
            self._contexts.stack = [context_of(0)]
        stack: list[int] = self._contexts.stack
        return stack

    def cuCtxGetCurrent(self) -> binding.CUcontext:
        self._pid = self._pid or os.getpid()  # numba-cuda asks when it begins to use the device
        return binding.CUcontext(self._current[-1] if self._current else 0)

    def cuCtxGetDevice(self) -> int:
        return self._current[-1] - context_of(0) if self._current else 0

    def cuCtxPushCurrent(self, handle: int) -> None:
        self._current.append(int(handle))

    def cuCtxPopCurrent(self) -> binding.CUcontext:
        return binding.CUcontext(self._current.pop())

    def cuDevicePrimaryCtxRelease(self, device: int) -> None:
        self.cuCtxSynchronize()

    def cuDevicePrimaryCtxReset(self, device: int) -> None:
        self.cuCtxSynchronize()

    def cuProfilerStart(self) -> None:
        pass

    def cuProfilerStop(self) -> None:
        pass

    # --- memory

    def cuMemAlloc(self, nbytes: int) -> binding.CUdeviceptr:
        if self._allocated + nbytes > UNCHECKED:
            free, _ = self.cuMemGetInfo()
            if nbytes > free:
                raise fail("OUT_OF_MEMORY", f"{nbytes} bytes asked for, {free} are free")
            self._allocated = 0
        self._allocated += nbytes
        address = self._allocate(nbytes)
        self._device_bytes[address] = nbytes
        return binding.CUdeviceptr(address)

    def _allocate(self, nbytes: int) -> int:
        # Aligned to 256 bytes, in pieces of 512, as CUDA's is: programs write a little too far.
        room = -(-max(nbytes, 1) // 512) * 512 + 512
        seen = queue_observer.present()
        if seen is None:
            memory: Any = np.empty(room, np.uint8)
            address = -(-address_of(memory) // 256) * 256
        else:
            memory, address = guarded(room)
            seen.got_memory(address, nbytes, GUARD)
        self._memory[address] = memory
        return address

    def cuMemAllocManaged(self, nbytes: int, flags: int) -> binding.CUdeviceptr:
        return self.cuMemAlloc(nbytes)

    def cuMemFree(self, pointer: Any) -> None:
        # After all queued work, which may still use it.
        self._device_bytes.pop(int(pointer), None)
        self._free_later(int(pointer))

    def _free_later(self, address: int) -> None:
        memory = self._memory.pop(address, None)
        spent = isinstance(memory, mmap.mmap)
        self.device.default.submit(partial(spend, memory) if spent else Copy(0, 0, 0, keep=memory))

    def cuMemGetInfo(self) -> tuple[int, int]:
        total = modelled().memory
        left = total - sum(self._device_bytes.values())
        return min(int(psutil.virtual_memory().available), left), total

    def cuMemHostAlloc(self, nbytes: int, flags: int) -> int:
        address = self._allocate(nbytes)
        self._pinned[address] = nbytes
        return address

    def cuMemFreeHost(self, pointer: Any) -> None:
        self._pinned.pop(int(pointer), None)
        self._free_later(int(pointer))

    def cuMemHostRegister(self, pointer: Any, nbytes: int, flags: int) -> None:
        if int(pointer) in self._pinned:
            raise fail("HOST_MEMORY_ALREADY_REGISTERED", f"at {int(pointer):#x}")
        self._pinned[int(pointer)] = nbytes

    def cuMemHostUnregister(self, pointer: Any) -> None:
        self.cuCtxSynchronize()
        del self._pinned[int(pointer)]

    def cuPointerGetAttribute(self, attribute: Any, pointer: Any) -> binding.CUdeviceptr:
        return binding.CUdeviceptr(int(pointer))  # host and device share their addresses

    def cuMemHostGetDevicePointer(self, pointer: Any, flags: int) -> binding.CUdeviceptr:
        return binding.CUdeviceptr(int(pointer))

    def cuMemGetAddressRange(self, pointer: Any) -> tuple[int, int]:
        for base, nbytes in [*self._device_bytes.items(), *self._pinned.items()]:
            if base <= int(pointer) < base + max(nbytes, 1):
                return base, nbytes
        raise fail("NOT_FOUND", f"no allocation holds {int(pointer):#x}")

    def _is_pinned(self, address: int, nbytes: int) -> bool:
        return any(a <= address and address + nbytes <= a + n for a, n in self._pinned.items())

    def _copy(
        self,
        dst: Any,
        src: Any,
        nbytes: int,
        stream: Any = 0,
        wait: bool = True,
        stage: bool = False,
    ) -> None:
        dst, src = int(dst), int(src)
        queue = self.queue(stream)
        if (wait or stage) and queue_observer.present() is None and queue.device.idle():
            ctypes.memmove(dst, src, nbytes)
            return
        staged = np.empty(nbytes if stage else 0, np.uint8)
        origin = address_of(staged) if stage else src
        if stage:
            ctypes.memmove(origin, src, nbytes)
        reads = 0 if stage else src
        work = Work("a copy", reads, dst, nbytes, lambda: ctypes.string_at(origin, nbytes))
        self._queue(stream, work, Copy(dst, origin, nbytes, staged))
        if wait:
            self.cuStreamSynchronize(stream)

    def cuMemcpyHtoD(self, dst: Any, src: Any, nbytes: int) -> None:
        self._copy(dst, src, nbytes)

    def cuMemcpyDtoH(self, dst: Any, src: Any, nbytes: int) -> None:
        self._copy(dst, src, nbytes)

    def cuMemcpyDtoD(self, dst: Any, src: Any, nbytes: int) -> None:
        self._copy(dst, src, nbytes, wait=False)

    def cuMemcpyHtoDAsync(self, dst: Any, src: Any, nbytes: int, stream: Any) -> None:
        pinned = self._is_pinned(int(src), nbytes)
        self._copy(dst, src, nbytes, stream, wait=False, stage=not pinned)

    def cuMemcpyDtoHAsync(self, dst: Any, src: Any, nbytes: int, stream: Any) -> None:
        self._copy(dst, src, nbytes, stream, wait=not self._is_pinned(int(dst), nbytes))

    def cuMemcpyDtoDAsync(self, dst: Any, src: Any, nbytes: int, stream: Any) -> None:
        self._copy(dst, src, nbytes, stream, wait=False)

    def cuMemsetD8(self, pointer: Any, byte: int, count: int) -> None:
        self.cuMemsetD8Async(pointer, byte, count, 0)
        self.cuStreamSynchronize(0)  # the host may look at it: it may be mapped memory

    def cuMemsetD8Async(self, pointer: Any, byte: int, count: int, stream: Any) -> None:
        address = int(pointer)
        work = Work("memset", 0, address, count, lambda: bytes([byte]))
        self._queue(stream, work, lambda: ctypes.memset(address, byte, count))

    # --- streams

    def queue(self, stream: Any) -> Stream:
        """The stream that numba-cuda means by a handle."""
        if os.getpid() != (self._pid or os.getpid()):
            raise CudaDriverError(
                "CUDA initialized before forking: start processes with 'spawn', or fork first"
            )
        self._pid = os.getpid()
        handle = self._number(stream)
        if handle == 0:
            return self.device.default
        if handle not in self._streams:
            raise fail("INVALID_HANDLE", f"there is no stream {handle:#x} on the CPU engine")
        return self._streams[handle]

    def launch(self, stream: Any, launch: Running) -> None:
        """Queue a launch."""
        queue, seen = self.queue(stream), queue_observer.present()
        if seen is None:
            queue.submit(launch)
            return
        with self.device.lock:  # numbers are in the order of the queue
            number = self._last[self._number(stream)] = seen.submitted(launch, self._number(stream))

            def run_seen() -> None:
                with seen.running(launch, number):
                    launch()

            queue.submit(run_seen)

    def _queue(self, stream: Any, work: Work, run: Callable[[], object]) -> int:
        """Queue other work; returns the number by which the witness knows it, 0 without one."""
        queue, seen = self.queue(stream), queue_observer.present()
        if seen is None:
            queue.submit(run)
            return 0
        with self.device.lock:
            number, begins = seen.queues(work, self._number(stream))
            self._last[self._number(stream)] = number

            def run_seen() -> None:
                begins()
                run()

            queue.submit(run_seen)
        return number

    def _number(self, stream: Any) -> int:
        """The number of a stream, 0 for the default one."""
        handle = int(getattr(stream, "handle", stream) or 0)
        return 0 if handle in (LEGACY, PER_THREAD) else handle

    def _returned(self, number: int) -> None:
        """The host has waited for what a witness knows by this number."""
        seen = queue_observer.present()
        if seen is not None and number:
            seen.returned(number)

    def end(self) -> None:
        """The program is over."""
        seen = queue_observer.present()
        if seen is not None:
            seen.end()

    def cuStreamCreate(self, flags: int) -> StreamHandle:
        handle = StreamHandle(next(self._handles))
        self._streams[handle] = stream = self.device.stream()
        stream.number = int(handle)
        return handle

    def cuStreamDestroy(self, stream: Any) -> None:
        del self._streams[int(stream)]

    def cuStreamSynchronize(self, stream: Any) -> None:
        self._wait(lambda: self.synchronize(stream))

    def synchronize(self, stream: Any) -> None:
        """Wait for a stream; raises the error of a launch that failed."""
        last = self._last.get(self._number(stream), 0)
        try:
            self.queue(stream).synchronize()
        finally:
            self._returned(last)

    def cuCtxSynchronize(self) -> None:
        last = self._last.copy()
        self._wait(self.device.synchronize)
        for stream, number in last.items():
            self._returned(number)
            if self._last[stream] == number:
                del self._last[stream]

    def _wait(self, synchronize: Callable[[], None]) -> None:
        try:
            synchronize()
        except KernelError as error:
            raise fail("LAUNCH_FAILED", str(error)) from error

    def cuStreamAddCallback(self, stream: Any, callback: Any, data: int, flags: int) -> None:
        address = ctypes.c_int64.from_address(callback.getPtr()).value
        function = CALLBACK(address)
        handle = int(stream)
        work = Work("a callback", tells_host=True)
        self._queue(stream, work, lambda: function(handle, 0, data))

    # --- events

    def cuEventCreate(self, flags: int) -> binding.CUevent:
        handle = next(self._handles)
        self._events[handle] = Event()
        return binding.CUevent(handle)

    def cuEventDestroy(self, event: Any) -> None:
        del self._events[int(event)]

    def cuEventRecord(self, event: Any, stream: Any) -> None:
        done = Flag()
        record = self._events[int(event)]
        record.done = done

        def reach() -> None:
            record.time = time.perf_counter()
            done.set()

        record.number = self._queue(stream, Work("an event"), reach)

    def cuEventQuery(self, event: Any) -> None:
        number = self._events[int(event)].number
        if not self._events[int(event)].done.is_set():
            raise CudaAPIError(Code.CUDA_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY")
        self._returned(number)

    def cuEventSynchronize(self, event: Any) -> None:
        number = self._events[int(event)].number
        self._events[int(event)].done.wait()
        self._returned(number)

    def cuStreamWaitEvent(self, stream: Any, event: Any, flags: int) -> None:
        awaited = self._events[int(event)]
        self.queue(stream).submit(awaited.done.wait)
        self._queue(stream, Work("a wait", after=awaited.number), lambda: None)

    def cuEventElapsedTime(self, start: Any, end: Any) -> float:
        """Milliseconds between two events that have occurred."""
        first, last = self._events[int(start)], self._events[int(end)]
        for event in (first, last):
            if not event.done.is_set():
                raise CudaAPIError(Code.CUDA_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY")
        return (last.time - first.time) * 1e3

    # --- occupancy

    def cuOccupancyMaxActiveBlocksPerMultiprocessor(
        self, function: Any, threads: int, dynamic_shared: int
    ) -> int:
        return modelled().blocks_per_sm(threads, function.entry.shared_bytes + dynamic_shared)
