"""What programs use of `cuda.core`, on the CPU engine: devices, streams, events, buffers.

Handles are those of the driver that `numba.cuda` uses there, so that its streams and these are the
same. Names that are not here (programs, linkers, graphs) stay `cuda.core`'s own, and need a GPU.
"""

from __future__ import annotations

import ctypes
import weakref
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from gpushmem import settings, simulator

__all__ = [
    "LEGACY_DEFAULT_STREAM", "PER_THREAD_DEFAULT_STREAM", "Buffer", "Device",
    "DeviceMemoryResource", "Event", "EventOptions", "MemoryResource", "Stream",
    "StreamOptions", "system",
]  # fmt: skip


def engine() -> Any:
    """The driver that `numba.cuda` uses."""
    if not simulator.is_enabled():
        simulator.enable()
    from numba import cuda  # noqa: F401, PLC0415  (which is patched then)

    from gpushmem.simt.programs import engine as present  # noqa: PLC0415

    return present()


class ComputeCapability(NamedTuple):
    """Of a device: 9, 0 of an H100."""

    major: int
    minor: int


class StreamOptions(SimpleNamespace):
    """Options of `Device.create_stream`; they make no difference here."""


class EventOptions(SimpleNamespace):
    """Options of `Device.create_event`; all events have times here."""


class Event:
    """A point in a stream; made by `Device.create_event` or `Stream.record`."""

    def __init__(self) -> None:
        driver = engine()
        self.handle = int(driver.cuEventCreate(0))
        weakref.finalize(self, driver.cuEventDestroy, self.handle)

    def sync(self) -> None:
        """Wait until it has been reached."""
        engine().cuEventSynchronize(self.handle)

    @property
    def is_done(self) -> bool:
        """Whether it has been reached."""
        driver = engine()
        return bool(driver._events[self.handle].done.is_set())

    def __sub__(self, earlier: Event) -> float:
        """Milliseconds between two events that have been reached."""
        return float(engine().cuEventElapsedTime(earlier.handle, self.handle))

    def close(self) -> None:
        """Nothing to do: it ends with the last reference."""


class Stream:
    """Work in its order; made by `Device.create_stream`."""

    def __init__(self, handle: int, owner: object = None) -> None:
        self.handle, self._owner = int(handle), owner

    @staticmethod
    def from_handle(handle: Any) -> Stream:
        """The stream with this number, one of `numba.cuda`, say."""
        return Stream(int(handle))

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.handle == self.handle

    def __hash__(self) -> int:
        return hash(self.handle)

    def sync(self) -> None:
        """Wait for all that is queued on it; raises the error of a launch that failed."""
        engine().synchronize(self.handle)

    def record(self, event: Event | None = None, options: Any = None) -> Event:
        """Queue an event."""
        event = event or Event()
        engine().cuEventRecord(event.handle, self.handle)
        return event

    def wait(self, other: Any) -> None:
        """Let what is queued from now on wait for an event, or for what another stream has."""
        event = other if isinstance(other, Event) else as_stream(other).record()
        engine().cuStreamWaitEvent(self.handle, event.handle, 0)

    @property
    def device(self) -> Device:
        """The current device."""
        return Device()

    is_nonblocking, priority = False, 0

    def close(self) -> None:
        """Nothing to do: it ends with the last reference, when its work is done."""

    def __repr__(self) -> str:
        return f"<Stream {self.handle}>"


def as_stream(given: Any) -> Stream:
    """A stream of any library that says its handle, by CUDA's protocol or as a number."""
    if isinstance(given, Stream):
        return given
    if hasattr(given, "__cuda_stream__"):
        return Stream(given.__cuda_stream__()[1])
    return Stream(int(getattr(given, "cuda_stream", given)))


def _new_stream() -> Stream:
    driver = engine()
    handle = driver.cuStreamCreate(0)
    stream = Stream(handle)
    weakref.finalize(stream, driver.cuStreamDestroy, handle)
    return stream


LEGACY_DEFAULT_STREAM, PER_THREAD_DEFAULT_STREAM = Stream(0), Stream(0)


class MemoryResource:
    """Something that allocates buffers."""

    is_device_accessible, is_host_accessible, device_id = True, True, 0

    def allocate(self, size: int, stream: Any = None) -> Buffer:
        """Allocate a buffer."""
        raise NotImplementedError

    def deallocate(self, ptr: int, size: int, stream: Any = None) -> None:
        """Release what a buffer has; called by its `close`."""


class DeviceMemoryResource(MemoryResource):
    """Ordinary memory of a device."""

    def __init__(self, device_id: Any = 0, options: Any = None) -> None:
        self.device_id = int(getattr(device_id, "device_id", device_id))

    def allocate(self, size: int, stream: Any = None) -> Buffer:
        """Allocate a buffer."""
        return Buffer.from_handle(int(engine().cuMemAlloc(size)), size, mr=self)

    def deallocate(self, ptr: int, size: int, stream: Any = None) -> None:
        """Release it, after what is queued."""
        engine().cuMemFree(ptr)


class Buffer:
    """A piece of memory: address, size in bytes, and what has allocated it."""

    def __init__(self, handle: int, size: int, mr: MemoryResource | None, owner: object) -> None:
        self.handle, self.size, self.memory_resource = handle, size, mr
        self.owner = owner  # kept alive; of symmetric memory, its array
        self._end: Any = None
        if mr is not None:
            self._end = weakref.finalize(self, mr.deallocate, handle, size)
            self._end.atexit = False

    @classmethod
    def from_handle(
        cls, ptr: Any, size: int, mr: MemoryResource | None = None, owner: object = None
    ) -> Buffer:
        """A buffer on existing memory."""
        return cls(int(ptr), int(size), mr, owner)

    def close(self, stream: Any = None) -> None:
        """Release the memory, by what has allocated it; the last reference's end does, too."""
        if self.memory_resource is not None and self._end.detach():
            self.memory_resource.deallocate(self.handle, self.size, stream)

    def memory(self) -> np.ndarray[Any, Any]:
        """The bytes, as an array on the same memory."""
        place = (ctypes.c_int8 * self.size).from_address(self.handle)
        array = np.ctypeslib.as_array(place)
        place._of = self  # type: ignore[attr-defined]  # kept alive
        return array

    def copy_to(self, dst: Buffer | None = None, *, stream: Any = None) -> Buffer:
        """Queue a copy to another buffer, by default a new one; returns it."""
        if dst is None:
            dst = (self.memory_resource or DeviceMemoryResource()).allocate(self.size, stream)
        dst.copy_from(self, stream=stream)
        return dst

    def copy_from(self, src: Buffer, *, stream: Any = None) -> None:
        """Queue a copy of a buffer of the same size."""
        if src.size != self.size:
            raise ValueError(f"buffer sizes mismatch: {src.size} bytes to {self.size}")
        engine().cuMemcpyDtoDAsync(
            self.handle, src.handle, self.size, as_stream(stream or 0).handle
        )

    def __dlpack__(self, **options: Any) -> Any:
        return self.memory().__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.memory().__dlpack_device__()

    is_device_accessible, is_host_accessible = True, True

    @property
    def device_id(self) -> int:
        """The device that has the memory."""
        return self.memory_resource.device_id if self.memory_resource is not None else 0

    def __repr__(self) -> str:
        return f"<Buffer of {self.size} bytes at {self.handle:#x}>"


class _Properties:
    """`Device.properties`: attributes of the modelled GPU, by CUDA's names in lower case."""

    def __init__(self, device_id: int) -> None:
        self._device_id = device_id

    def __getattr__(self, name: str) -> int:
        code = SimpleNamespace(name=f"CU_DEVICE_ATTRIBUTE_{name.upper()}")
        return int(engine().cuDeviceGetAttribute(code, self._device_id))


class Device:
    """A GPU of the simulator; without a number the current one."""

    def __init__(self, device_id: Any = None) -> None:
        from gpushmem.simt.programs import CoreDevice  # noqa: PLC0415

        device_id = getattr(device_id, "device_id", device_id)
        number = engine().cuCtxGetDevice() if device_id is None else int(device_id)
        self._made = CoreDevice(number)  # raises if there is none
        self.device_id, self.name, self.uuid = number, self._made.name, self._made.uuid
        self.compute_capability = ComputeCapability(*self._made.compute_capability)
        self.arch = "".join(map(str, self.compute_capability))
        self.pci_bus_id = f"0000:{number:02x}:00.0"
        self.properties = _Properties(number)
        self.memory_resource: MemoryResource = DeviceMemoryResource(number)

    def __int__(self) -> int:
        return self.device_id

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device) and other.device_id == self.device_id

    def __hash__(self) -> int:
        return hash(self.device_id)

    @staticmethod
    def get_all_devices() -> tuple[Device, ...]:
        """All devices."""
        return tuple(Device(number) for number in range(system.num_devices))

    @property
    def context(self) -> Any:
        """Its context."""
        return self._made.context

    def set_current(self, ctx: Any = None) -> None:
        """Make it the calling thread's device, `numba.cuda`'s too."""
        from numba import cuda  # noqa: PLC0415

        cuda.select_device(self.device_id)

    def create_stream(self, obj: Any = None, options: Any = None) -> Stream:
        """Make a stream, or the same one of another library."""
        given = obj if hasattr(obj, "__cuda_stream__") else None
        return _new_stream() if given is None else Stream(given.__cuda_stream__()[1], given)

    def create_event(self, options: Any = None) -> Event:
        """Make an event."""
        return Event()

    @property
    def default_stream(self) -> Stream:
        """CUDA's default stream."""
        return LEGACY_DEFAULT_STREAM

    def allocate(self, size: int, stream: Any = None) -> Buffer:
        """Allocate ordinary device memory."""
        return self.memory_resource.allocate(size, stream)

    def sync(self) -> None:
        """Wait for all streams; raises the error of a launch that failed."""
        engine().device.synchronize()

    def __repr__(self) -> str:
        return f"<Device {self.device_id} ({self.name})>"


class _System:
    """`cuda.core.system`: the machine's GPUs, those of the simulator."""

    @property
    def num_devices(self) -> int:
        """How many there are."""
        return int(settings.get("GPUSHMEM_SIM_DEVICES"))

    def get_num_devices(self) -> int:
        """How many there are."""
        return self.num_devices

    @property
    def devices(self) -> tuple[Device, ...]:
        """All of them."""
        return Device.get_all_devices()

    @property
    def driver_version(self) -> tuple[int, int]:
        """The version of CUDA that the driver has."""
        version = engine().cuDriverGetVersion()
        return version // 1000, version % 1000 // 10


system = _System()
