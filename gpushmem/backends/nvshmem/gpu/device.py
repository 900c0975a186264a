"""The GPU of a PE: memory, copies and streams.

A kernel may run until the host does something: a call of the driver that waits for kernels could
wait for ever, and neither Ctrl-C nor a timeout would end it. So copies are asynchronous, through
pinned memory, waits are polls (`Device.wait`), and memory is freed when the GPU is idle.
"""

from __future__ import annotations

import ctypes
import math
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle
from typing import Any, NamedTuple

import numpy as np
from cuda.bindings import driver
from cuda.core import LEGACY_DEFAULT_STREAM, StreamOptions
from cuda.core import Device as CudaDevice
from cuda.core import Stream as CudaStream

from gpushmem.arguments import integer
from gpushmem.backends.nvshmem.gpu.arrays import GpuArray, at
from gpushmem.backends.nvshmem.gpu.driver_errors import check
from gpushmem.backends.nvshmem.gpu.memory import Allocator, Memory, OutOfMemory, Unregistered
from gpushmem.errors import ArgumentError, BackendUnavailable, WaitTimeout

__all__ = ["NOTICE", "Device", "Stream", "say"]

PIECE = 4 << 20  # bytes of one copy; the pinned memory has room for two
KEPT = 1 << 30  # bytes of freed memory above which an allocation waits for the GPU
HOST, DEVICE = driver.CUmemorytype.CU_MEMORYTYPE_HOST, driver.CUmemorytype.CU_MEMORYTYPE_DEVICE
MAX_PITCH = 2**31 - 1  # bytes between the rows of a copy
EAGER = 200e-6  # seconds of a wait that poll without sleeping
CAPTURED = (
    "a stream is being captured: what is queued on it does not run now, so nothing can wait for "
    "it; end the capture, and launch the graph"
)
NOTICE = 10.0  # seconds until a PE says that it waits where nothing ends the wait


class Stream:
    """A stream of this PE's GPU, for launches and operations; also for cuda.core and PyTorch."""

    def __init__(self, device: Device, stream: CudaStream) -> None:
        self._device, self.cuda = device, stream
        self.workspace: GpuArray | None = None  # of products that are in a graph

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
        self.capturing = threading.RLock()  # holds who captures a stream, or waits for all
        self.captures: list[int] = []  # the threads that capture
        self.streams: weakref.WeakValueDictionary[int, Stream] = weakref.WeakValueDictionary()
        # For host calls; does not wait for the default stream.
        self.own = self.new_stream()
        self.memory: Allocator = Unregistered()
        self._freed: deque[tuple[int, int]] = deque()  # address, bytes: see `Memory`
        self._copying = threading.RLock()  # holds whoever uses the pinned memory
        portable = driver.CU_MEMHOSTALLOC_PORTABLE
        self._pinned = int(check(driver.cuMemHostAlloc(2 * PIECE, portable), "init"))

    @staticmethod
    def count() -> int:
        """The number of GPUs this process can use; raises `BackendUnavailable` if it is 0."""
        status, *_ = driver.cuInit(0)
        n = 0
        if status == driver.CUresult.CUDA_SUCCESS:
            n = int(check(driver.cuDeviceGetCount(), "cuDeviceGetCount"))
        if n == 0:
            cure = "see `gpushmem doctor`, or use the cpu backend"
            if status == driver.CUresult.CUDA_ERROR_MPS_SERVER_NOT_READY:
                cure = (
                    "a kernel of some process that shares the GPU has failed, and MPS takes no new "
                    "process until all these have ended: try again then"
                )
            raise BackendUnavailable(
                "the backend nvshmem needs a GPU, and this process can use none "
                f"({status.name}): {cure}"
            )
        return n

    def enter(self) -> None:
        """Make this GPU the calling thread's current one."""
        check(driver.cuCtxSetCurrent(self._context), "CUDA")

    # --- streams

    def new_stream(self, priority: int = 0, nonblocking: bool = True) -> Stream:
        """Make a stream, which waits for the default one unless it is `nonblocking`.

        Raises `ArgumentError` for a priority that there is not.
        """
        self.enter()
        least, greatest = check(driver.cuCtxGetStreamPriorityRange(), "stream")
        integer("stream: priority", priority, greatest, least)
        options = StreamOptions(nonblocking=nonblocking, priority=priority)
        stream = Stream(self, self.cuda.create_stream(options=options))
        self.streams[int(stream.cuda.handle)] = stream
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

    def wait_stream(self, stream: Any, other: Any) -> bool:
        """Order a stream after another by an event; False, having done nothing: they are the same.

        A stream that waits for one that is being captured joins the capture. One that is captured
        does not wait for one that is not.
        """
        later, earlier = self.stream_of(stream), self.stream_of(other)
        if int(later.handle) == int(earlier.handle):
            return False
        if self.is_captured(earlier) or not self.is_captured(later):
            untimed = driver.CUevent_flags.CU_EVENT_DISABLE_TIMING
            event = check(driver.cuEventCreate(untimed), "wait_stream")
            check(driver.cuEventRecord(event, earlier.handle), "wait_stream")
            check(driver.cuStreamWaitEvent(later.handle, event, 0), "wait_stream")
            check(driver.cuEventDestroy(event), "wait_stream")  # it goes when it is not needed
        return True

    def is_captured(self, stream: CudaStream | int) -> bool:
        """Whether what is queued on a stream now, or on that of a handle, is for a graph."""
        handle = int(getattr(stream, "handle", stream))
        if handle == int(LEGACY_DEFAULT_STREAM.handle):
            return False  # it cannot be, and must not be asked while others are
        status = check(driver.cuStreamIsCapturing(handle), "is_capturing")
        return bool(status != driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE)

    @property
    def captures_here(self) -> bool:
        """Whether the calling thread captures a stream."""
        return threading.get_ident() in self.captures

    def wait(self, stream: CudaStream, what: str) -> None:
        """Wait until a stream is done; Ctrl-C ends the wait, and so does the timeout.

        cuStreamSynchronize ignores Ctrl-C, so this polls, with back-off.
        """
        if self.captures_here:
            raise ArgumentError(CAPTURED)
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

    @contextmanager
    def loading(self, name: str) -> Iterator[None]:
        """Load code within, for which the driver waits for all kernels of this GPU.

        Nothing ends that wait, so a thread says after a while what is going on, and ends the job
        with the timeout, if there is a launcher.
        """
        done = threading.Event()
        threading.Thread(target=self._watch_loading, args=(name, done), daemon=True).start()
        try:
            yield
        finally:
            done.set()

    def _watch_loading(self, name: str, done: threading.Event) -> None:
        began, longest = time.monotonic(), self.timeout
        cure = (
            "the driver loads code when no kernel is running on this GPU. Call gpushmem.preload "
            "for it before you launch a kernel that waits"
        )
        if not done.wait(NOTICE if longest is None else min(NOTICE, longest)):
            waited = time.monotonic() - began
            say(f"loading the code of {name} has waited for {waited:.1f} s: {cure}")
        if longest is not None and not done.wait(max(0.0, longest - NOTICE)):
            self.late(f"loading the code of {name} has waited for {longest:g} s: {cure}")

    def synchronize(self, what: str = "synchronize") -> None:
        """Wait until all streams of this PE are done; then nobody uses what was freed before."""
        over = [self._freed.popleft() for _ in range(len(self._freed))]
        try:
            with self.capturing:  # nothing is captured then, for which CUDA cannot wait
                for stream in list(self.streams.values()):
                    self.wait(stream.cuda, what)
                self.wait(LEGACY_DEFAULT_STREAM, what)
                check(driver.cuCtxSynchronize(), what)  # streams of other libraries, too
        except BaseException:
            self._freed.extendleft(reversed(over))
            raise
        for address, _ in over:
            self.memory.free(address)

    def stop(self, seconds: float) -> bool:
        """Whether all streams of this PE are done within so many seconds; none can be cancelled."""
        self.enter()
        end = time.monotonic() + seconds
        streams = [LEGACY_DEFAULT_STREAM, *(s.cuda for s in list(self.streams.values()))]
        busy = driver.CUresult.CUDA_ERROR_NOT_READY
        while any(driver.cuStreamQuery(stream.handle)[0] == busy for stream in streams):
            if time.monotonic() > end:
                return False
            time.sleep(1e-3)
        return True

    # --- memory

    def array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> GpuArray:
        """An array in ordinary device memory, freed after the last reference."""
        self.enter()
        nbytes = max(1, math.prod(shape) * dtype.itemsize)
        if sum(n for _, n in list(self._freed)) > KEPT and not self.captures_here:
            self.synchronize("device_array")
        try:
            address = self.memory.alloc(nbytes)
        except OutOfMemory:
            self.synchronize("device_array")  # which frees what can be freed
            address = self.memory.alloc(nbytes)
        return at(address, shape, dtype, Memory(address, nbytes, self._freed))

    def read(self, array: GpuArray) -> np.ndarray[Any, Any]:
        """A copy in host memory; kernels are not waited for."""
        upward = _upward(array.layout)
        copy = np.empty(array.shape, array.dtype)
        with self._copying:
            self._ready("numpy")
            last: tuple[Piece, int] | None = None
            for piece, half in self._halves(array.layout[upward], copy):
                self._queue(half, piece, to_host=True)
                if last is not None:  # while the next piece is on its way
                    ctypes.memmove(last[0].host, last[1], last[0].nbytes)
                self.wait(self.own.cuda, "numpy")
                last = piece, half
            if last is not None:
                ctypes.memmove(last[0].host, last[1], last[0].nbytes)
        return np.ascontiguousarray(copy[upward]) if array.shape else copy

    def write(self, array: GpuArray, values: Any) -> None:
        """Copy `values`, broadcast, to the array; kernels are not waited for."""
        upward = _upward(array.layout)
        copy = np.empty(array.shape, array.dtype)
        np.copyto(copy[upward], values, casting="unsafe")  # as assignment to a NumPy array does
        with self._copying:
            self._ready("copy_from")
            for piece, half in self._halves(array.layout[upward], copy):
                ctypes.memmove(half, piece.host, piece.nbytes)  # the piece before is on its way
                self.wait(self.own.cuda, "copy_from")
                self._queue(half, piece, to_host=False)
            self.wait(self.own.cuda, "copy_from")

    def _ready(self, what: str) -> None:
        """Wait for what may still use the pinned memory: a copy that Ctrl-C has interrupted."""
        self.wait(self.own.cuda, what)

    def _halves(
        self, layout: np.ndarray[Any, Any], copy: np.ndarray[Any, Any]
    ) -> Iterator[tuple[Piece, int]]:
        """The pieces of a copy, with the half of the pinned memory that each is to use."""
        return zip(_pieces(layout, copy), cycle((self._pinned, self._pinned + PIECE)), strict=False)

    def _queue(self, half: int, piece: Piece, to_host: bool) -> None:
        """Queue the copy of a piece between the GPU and the pinned memory."""
        stream = self.own.cuda.handle
        if piece.rows > 1:
            returned = driver.cuMemcpy2DAsync(_rows(half, piece, to_host), stream)
        elif to_host:
            returned = driver.cuMemcpyDtoHAsync(half, piece.device, piece.nbytes, stream)
        else:
            returned = driver.cuMemcpyHtoDAsync(piece.device, half, piece.nbytes, stream)
        check(returned, "a copy")


class Piece(NamedTuple):
    """A part of a copy: `rows` of `width` bytes, `pitch` apart on the GPU, one behind the other."""

    device: int
    host: int
    width: int
    rows: int
    pitch: int

    @property
    def nbytes(self) -> int:
        """Bytes of the rows."""
        return self.width * self.rows


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
    fits = row.nbytes <= PIECE and row.nbytes <= layout.strides[0] <= MAX_PITCH
    if row.flags.c_contiguous and fits:
        yield layout, copy
        return
    for i in range(layout.shape[0]):
        yield from _blocks(layout[i, ...], copy[i, ...])


def _pieces(layout: np.ndarray[Any, Any], copy: np.ndarray[Any, Any]) -> Iterator[Piece]:
    """A copy between an array in device memory and one of the host's, in pieces."""
    for theirs, ours in _blocks(layout, copy):
        device, host = _address(theirs), _address(ours)
        if theirs.flags.c_contiguous:
            for start in range(0, ours.nbytes, PIECE):
                width = min(PIECE, ours.nbytes - start)
                yield Piece(device + start, host + start, width, 1, width)
        else:
            width, pitch = ours[:1].nbytes, theirs.strides[0]
            at_once = PIECE // width
            for first in range(0, len(ours), at_once):
                rows = min(at_once, len(ours) - first)
                yield Piece(device + first * pitch, host + first * width, width, rows, pitch)


def _rows(half: int, piece: Piece, to_host: bool) -> driver.CUDA_MEMCPY2D:
    """A copy of rows between the GPU and pinned memory, where they follow each other."""
    copy = driver.CUDA_MEMCPY2D()
    copy.srcMemoryType, copy.dstMemoryType = (DEVICE, HOST) if to_host else (HOST, DEVICE)
    copy.srcHost = copy.dstHost = half
    copy.srcDevice = copy.dstDevice = piece.device
    pitches = (piece.pitch, piece.width) if to_host else (piece.width, piece.pitch)
    copy.srcPitch, copy.dstPitch = pitches
    copy.WidthInBytes, copy.Height = piece.width, piece.rows
    return copy


def _address(array: np.ndarray[Any, Any]) -> int:
    return int(array.__array_interface__["data"][0])


def say(text: str) -> None:
    """Write a line to stderr."""
    print(f"gpushmem: {text}", file=sys.stderr, flush=True)
