"""A job's shared memory as one PE sees it: every PE's heap segment, and the control page.

The segments are mapped one after the other, `stride` bytes apart, so that

    peer address = my address + (pe - my_pe) * stride

All of it is memory without a name (memfd): nothing is left when the last process ends, however it
ends. Segments are sized by `World`, and emptied by `close`, so that the next one starts from zeros.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from functools import cache
from typing import Any

import numpy as np

from gpushmem.bootstrap.local import Job
from gpushmem.errors import ShmemError
from gpushmem.simt.layout import address_of, new

__all__ = ["CONTROL", "WORLD", "World"]

PAGE = mmap.PAGESIZE
LINE = 64  # bytes; words that different PEs write stay on different cache lines

CONTROL = np.dtype(
    {
        # The central barrier: whoever makes `arrived` reach n_pes resets it and moves `generation`.
        "names": ["arrived", "generation"],
        "formats": ["i8", "i8"],
        "offsets": [0, LINE],
        "itemsize": 2 * LINE,
    }
)
SLOT = np.dtype(
    [
        # What a PE says in a collective call of the host, see `collective`.
        ("generation", "i8"),
        ("nbytes", "i8"),
        ("what", "S112"),
    ]
)
SLOT_SETS = 2  # one being written for the next call while the other is still read

WORLD = np.dtype(
    [
        # What a kernel knows of the job: the launch's `user` word points here.
        ("my_pe", "i8"),
        ("n_pes", "i8"),
        ("heap", "i8"),  # address of this PE's segment
        ("heap_bytes", "i8"),
        ("stride", "i8"),
        ("control", "i8"),
    ],
    align=True,
)

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
]  # fmt: skip
MAP_SHARED, MAP_PRIVATE, MAP_FIXED, MAP_ANONYMOUS, MAP_NORESERVE = 0x01, 0x02, 0x10, 0x20, 0x4000
PROT_NONE, PROT_READ_WRITE = 0, 3


class World:
    """The mapped memory of a job. `heap_bytes` must be the same on every PE."""

    def __init__(self, job: Job, heap_bytes: int) -> None:
        self.job = job
        self.stride = -(-heap_bytes // PAGE) * PAGE
        self.heap_bytes = heap_bytes
        head = -(-job.n_pes // LINE) * LINE  # which PEs have ended, see `Job`
        slots_at = head + CONTROL.itemsize
        self.control_bytes = slots_at + SLOT_SETS * job.n_pes * SLOT.itemsize
        self._size(job.control_fd, self.control_bytes)
        self._control = mmap.mmap(job.control_fd, self.control_bytes)
        self.ended = np.frombuffer(self._control, np.bool_, job.n_pes)
        self.control = np.frombuffer(self._control, CONTROL, 1, head)
        slots = np.frombuffer(self._control, SLOT, offset=slots_at)
        self.slots = slots.reshape(SLOT_SETS, job.n_pes)
        self.native = new(WORLD)
        self.native["my_pe"], self.native["n_pes"] = job.my_pe, job.n_pes
        self.native["control"] = address_of(self.control)

    def map_heap(self) -> None:
        """Map all segments, which every PE must have sized before: `size_heap`, a barrier, this."""
        self.region, self.bytes = _map_segments(self.job.heap_fds, self.stride)
        self.heap = self.region + self.job.my_pe * self.stride
        self.native["heap"], self.native["stride"] = self.heap, self.stride
        self.native["heap_bytes"] = self.heap_bytes

    def size_heap(self) -> None:
        """Give this PE's segment its size; its memory reads as zeros and is not yet used up."""
        self._size(self.job.heap_fds[self.job.my_pe], self.stride)

    def _size(self, fd: int, nbytes: int) -> None:
        try:
            if os.fstat(fd).st_size < nbytes:
                os.ftruncate(fd, nbytes)
        except OSError as error:
            raise ShmemError(
                f"no shared memory segment of {nbytes} bytes: {error.strerror}"
            ) from error

    def array(
        self, offset: int, shape: tuple[int, ...], dtype: Any, pe: int
    ) -> np.ndarray[Any, Any]:
        """The array at heap `offset` on `pe`, as memory that can be read and written."""
        start = pe * self.stride + offset
        return _view(self.bytes, start, shape, dtype, None)

    def peer(self, array: np.ndarray[Any, Any], pe: int) -> np.ndarray[Any, Any]:
        """The same array on another PE, for an array in this PE's segment."""
        start = address_of(array) - self.region + (pe - self.job.my_pe) * self.stride
        return _view(self.bytes, start, array.shape, array.dtype, array.strides)

    def holds(self, array: np.ndarray[Any, Any]) -> bool:
        """Whether all of `array` lies in this PE's segment."""
        low = high = address_of(array)
        for extent, stride in zip(array.shape, array.strides, strict=True) if array.size else ():
            low += min(0, (extent - 1) * stride)
            high += max(0, (extent - 1) * stride)
        end = high + (array.itemsize if array.size else 0)
        return self.heap <= low and end <= self.heap + self.heap_bytes

    def release_heap(self) -> None:
        """Give this PE's heap memory back to the system; other PEs must have stopped using it.

        The mapping stays, reading zeros: a NumPy view of it may still be around, and the next
        `init` with this heap size will use it again.
        """
        fd = self.job.heap_fds[self.job.my_pe]
        libc.fallocate(
            fd, FALLOC_PUNCH_HOLE_KEEP_SIZE, ctypes.c_long(0), ctypes.c_long(self.stride)
        )


FALLOC_PUNCH_HOLE_KEEP_SIZE = 0x03


@cache
def _map_segments(fds: tuple[int, ...], stride: int) -> tuple[int, np.ndarray[Any, Any]]:
    """Map `stride` bytes of each segment, one after the other; return address and memory."""
    total = len(fds) * stride
    region = _map(None, total, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1)
    for k, fd in enumerate(fds):
        _map(region + k * stride, stride, PROT_READ_WRITE, MAP_SHARED | MAP_FIXED, fd)
    buffer = (ctypes.c_char * total).from_address(region)
    return region, np.frombuffer(memoryview(buffer), np.uint8)


def _view(memory: Any, start: int, shape: Any, dtype: Any, strides: Any) -> np.ndarray[Any, Any]:
    view: np.ndarray[Any, Any] = np.ndarray(
        shape, dtype, buffer=memory.data, offset=start, strides=strides
    )
    return view


def _map(address: int | None, nbytes: int, prot: int, flags: int, fd: int) -> int:
    result: int = libc.mmap(address, nbytes, prot, flags, fd, 0)
    if result in (None, ctypes.c_void_p(-1).value):
        reason = os.strerror(ctypes.get_errno())
        raise ShmemError(
            f"cannot map {nbytes} bytes of symmetric heap: {reason}; try a smaller --heap-size"
        )
    return result
