"""The GPU of a PE: memory and streams."""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from cuda.bindings import driver
from cuda.core import LEGACY_DEFAULT_STREAM, StreamOptions
from cuda.core import Device as CudaDevice
from cuda.core import Stream as CudaStream

from gpushmem.backends.nvshmem.arrays import GpuArray, at
from gpushmem.errors import (
    ArgumentError,
    BackendUnavailable,
    KernelError,
    ShmemError,
    WaitTimeout,
)

__all__ = ["Device", "Stream", "check"]

HOST, DEVICE = driver.CUmemorytype.CU_MEMORYTYPE_HOST, driver.CUmemorytype.CU_MEMORYTYPE_DEVICE
MAX_PITCH = 2**31 - 1  # bytes between the rows of a copy
EAGER = 200e-6  # seconds of a wait that poll without sleeping


def check(returned: tuple[Any, ...], what: str) -> Any:
    """The values that a call of the CUDA driver returned; raises `ShmemError` for its errors."""
    status, *values = returned
    if status != driver.CUresult.CUDA_SUCCESS:
        _, name = driver.cuGetErrorName(status)
        _, text = driver.cuGetErrorString(status)
        said = f"{(name or b'?').decode()}: {(text or b'').decode()}"
        if b"LAUNCH" in (name or b"") or b"ILLEGAL" in (name or b"") or b"ASSERT" in (name or b""):
            raise KernelError(
                f"{what}: a kernel of this PE failed ({said}). The GPU says no more; the cpu "
                "backend names the line: run it there, with debug=True"
            )
        raise ShmemError(f"{what}: {said}")
    return values[0] if len(values) == 1 else values


class Stream:
    """A stream of this PE's GPU, for launches and operations; also for cuda.core and PyTorch."""

    def __init__(self, device: Device, stream: CudaStream) -> None:
        self._device, self.cuda = device, stream

    def synchronize(self) -> None:
        """Wait until all work queued on the stream is done."""
        self._device.wait(self.cuda, "synchronize")

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, int(self.cuda.handle)


class Device:
    """The GPU that a PE uses.

    CUDA keeps the current GPU per thread, and other libraries change it: methods of this class set
    it to this one.
    """

    def __init__(self, number: int) -> None:
        self.cuda = CudaDevice(number)
        self.cuda.set_current()
        self._context = check(driver.cuCtxGetCurrent(), "init")
        self.number = number
        self.timeout: float | None = None  # seconds that a host waits at most
        self.late: Callable[[str], None] = lambda reason: None  # called when it has
        self._streams: weakref.WeakSet[Stream] = weakref.WeakSet()
        # For host calls; does not wait for the default stream.
        self.own = self.new_stream()

    @staticmethod
    def count() -> int:
        """The number of GPUs this process can use; raises `BackendUnavailable` if it is 0."""
        status, *_ = driver.cuInit(0)
        n = 0
        if status == driver.CUresult.CUDA_SUCCESS:
            n = int(check(driver.cuDeviceGetCount(), "cuDeviceGetCount"))
        if n == 0:
            raise BackendUnavailable(
                "the backend nvshmem needs a GPU, and this process can use none "
                f"({status.name}): see `gpushmem doctor`, or use the cpu backend"
            )
        return n

    def enter(self) -> None:
        """Make this GPU the calling thread's current one."""
        check(driver.cuCtxSetCurrent(self._context), "CUDA")

    # --- streams

    def new_stream(self) -> Stream:
        """A stream that does not wait for the default one."""
        self.enter()
        stream = Stream(self, self.cuda.create_stream(options=StreamOptions(nonblocking=True)))
        self._streams.add(stream)
        return stream

    def stream_of(self, stream: Any) -> CudaStream:
        """The stream for an argument: ours, cuda.core's, PyTorch's, CuPy's, Numba's, or 0."""
        self.enter()
        if isinstance(stream, Stream):
            return stream.cuda
        if isinstance(stream, CudaStream):
            return stream
        if stream in (0, None):
            return LEGACY_DEFAULT_STREAM
        handle = _handle_of(stream)
        if handle is None:
            raise ArgumentError(
                f"a stream is gpushmem.stream(), 0, or one of cuda.core, PyTorch, CuPy or Numba; "
                f"got {stream!r}"
            )
        return CudaStream.from_handle(handle) if handle else LEGACY_DEFAULT_STREAM

    def wait(self, stream: CudaStream, what: str) -> None:
        """Wait until a stream is done; Ctrl-C ends the wait, and so does the timeout.

        cuStreamSynchronize ignores Ctrl-C, so this polls, with back-off.
        """
        self.enter()
        began, pause = time.monotonic(), 0.0
        while True:
            status = driver.cuStreamQuery(stream.handle)
            if status[0] != driver.CUresult.CUDA_ERROR_NOT_READY:
                check(status, what)
                return
            waited = time.monotonic() - began
            if self.timeout is not None and waited > self.timeout:
                reason = (
                    f"{what} has waited for {waited:.1f} s for this PE's GPU, longer than the "
                    f"timeout of {self.timeout:g} s allows. What kernels wait for cannot be seen "
                    "on a GPU: run the script on the cpu backend for a report"
                )
                self.late(reason)
                raise WaitTimeout(reason)
            if waited > EAGER:
                time.sleep(pause)
                pause = min(max(2 * pause, 20e-6), 1e-3)

    def synchronize(self, what: str = "synchronize") -> None:
        """Wait until all streams of this PE are done."""
        for stream in (LEGACY_DEFAULT_STREAM, *(s.cuda for s in list(self._streams))):
            self.wait(stream, what)
        check(driver.cuCtxSynchronize(), what)  # streams of other libraries, too

    def stop(self, seconds: float) -> bool:
        """Whether all streams of this PE are done within so many seconds; none can be cancelled."""
        self.enter()
        end = time.monotonic() + seconds
        streams = [LEGACY_DEFAULT_STREAM, *(s.cuda for s in list(self._streams))]
        busy = driver.CUresult.CUDA_ERROR_NOT_READY
        while any(driver.cuStreamQuery(stream.handle)[0] == busy for stream in streams):
            if time.monotonic() > end:
                return False
            time.sleep(1e-3)
        return True

    # --- memory

    def allocate(self, nbytes: int) -> Memory:
        """Ordinary device memory, freed with the last reference."""
        return Memory(nbytes)

    def array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> GpuArray:
        """An array in ordinary device memory."""
        self.enter()
        memory = self.allocate(math.prod(shape) * dtype.itemsize)
        return at(memory.address, shape, dtype, memory)

    def read(self, array: GpuArray) -> np.ndarray[Any, Any]:
        """A copy in host memory."""
        self.enter()
        upward = _upward(array.layout)
        copy = np.empty(array.shape, array.dtype)
        for theirs, ours in _blocks(array.layout[upward], copy):
            if theirs.flags.c_contiguous:
                returned = driver.cuMemcpyDtoH(_address(ours), _address(theirs), ours.nbytes)
            else:
                returned = driver.cuMemcpy2DUnaligned(_rows(theirs, ours, DEVICE, HOST))
            check(returned, "numpy")
        return np.ascontiguousarray(copy[upward]) if array.shape else copy

    def write(self, array: GpuArray, values: Any) -> None:
        """Copy `values`, broadcast, to the array."""
        self.enter()
        upward = _upward(array.layout)
        copy = np.empty(array.shape, array.dtype)
        np.copyto(copy[upward], values, casting="unsafe")  # as assignment to a NumPy array does
        for theirs, ours in _blocks(array.layout[upward], copy):
            if theirs.flags.c_contiguous:
                returned = driver.cuMemcpyHtoD(_address(theirs), _address(ours), ours.nbytes)
            else:
                returned = driver.cuMemcpy2DUnaligned(_rows(ours, theirs, HOST, DEVICE))
            check(returned, "copy_from")


class Memory:
    """A block of ordinary device memory."""

    def __init__(self, nbytes: int) -> None:
        self.address = int(check(driver.cuMemAlloc(max(1, nbytes)), f"allocating {nbytes} bytes"))

    def __del__(self) -> None:
        if hasattr(self, "address"):
            driver.cuMemFree(self.address)


def _handle_of(stream: Any) -> int | None:
    if hasattr(stream, "__cuda_stream__"):
        return int(stream.__cuda_stream__()[1])
    for name in ("cuda_stream", "ptr", "handle"):  # PyTorch, CuPy, Numba
        handle = getattr(stream, name, None)
        if handle is not None:
            return int(getattr(handle, "value", handle) or 0)
    return None


def _upward(layout: np.ndarray[Any, Any]) -> tuple[Any, ...]:
    """The index that reverses the axes of negative stride; applied twice, it restores them."""
    return *(slice(None, None, -1 if step < 0 else 1) for step in layout.strides), ...


def _blocks(layout: np.ndarray[Any, Any], copy: np.ndarray[Any, Any]) -> Iterator[Any]:
    """An array in device memory in parts that are one copy each, with their parts of `copy`.

    A part is contiguous, or rows that are so, at one distance from each other.
    """
    if not layout.size:
        return
    if layout.flags.c_contiguous:
        yield layout, copy
        return
    row = layout[0, ...]  # and not layout[0], which may be an element: that would be read
    if row.flags.c_contiguous and row.nbytes <= layout.strides[0] <= MAX_PITCH:
        yield layout, copy
        return
    for i in range(layout.shape[0]):
        yield from _blocks(layout[i, ...], copy[i, ...])


def _rows(
    src: np.ndarray[Any, Any], dst: np.ndarray[Any, Any], kind: Any, to: Any
) -> driver.CUDA_MEMCPY2D:
    """A copy of rows, which are contiguous, between the host's memory and the device's."""
    rows = driver.CUDA_MEMCPY2D()
    rows.srcMemoryType, rows.dstMemoryType = kind, to
    rows.srcHost = rows.srcDevice = _address(src)
    rows.dstHost = rows.dstDevice = _address(dst)
    rows.srcPitch, rows.dstPitch = src.strides[0], dst.strides[0]
    rows.WidthInBytes, rows.Height = src[:1].nbytes, len(src)
    return rows


def _address(array: np.ndarray[Any, Any]) -> int:
    return int(array.__array_interface__["data"][0])
