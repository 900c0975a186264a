"""A job's shared memory as one PE sees it: every PE's heap segment, and the control memory.

The segments are mapped one after the other, `stride` bytes apart, so that

    peer address = my address + (pe - my_pe) * stride

The control memory has a part for each PE, `span` bytes apart: its table of teams, which it alone
uses, and for each team the lines and boxes in which the other members write to it (`rounds`). The
last row of the table is no team, but that of the `rendezvous`.

All of it is memory without a name (memfd): nothing is left when the last process ends, however it
ends. Only what is written takes memory. Segments are sized by `World`, and emptied by `close`, so
that the next one starts from zeros; the control memory lives as long as the job.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np

from gpushmem.artifacts.argument_packing import address_of
from gpushmem.errors import ShmemError
from gpushmem.job.job import Job
from gpushmem.job.limits import within_limits
from gpushmem.native.structs import new, offset
from gpushmem.ops import QP_DEFAULT
from gpushmem.ops.team import teams_in
from gpushmem.size import span

__all__ = ["HALF_BYTES", "LINE", "LINE_OF", "RING_BYTES", "TEAM", "WORLD", "World"]

PAGE = mmap.PAGESIZE
LINE = 64  # bytes; different PEs write to different cache lines

# A PE's record of a team it is in; `n_pes` is 0 if the row is free.
TEAM = np.dtype(
    [
        ("n_pes", "i8"),
        ("my_pe", "i8"),  # the calling PE's number in the team
        ("members", "i8"),  # address of the numbers of its members in the job
        ("ranks", "i8"),  # ... and of the numbers of the job's PEs in the team; -1: not a member
        ("round", "i8"),  # number of the last round, see `rounds`
        ("said", "i8", 4),  # what this PE sent the others in it, see `LINE_OF`
        ("calls", "i8"),  # calls begun of what waits by other means than rounds
        ("unchecked", "i8"),  # whether it is not yet known that all of them sent the same
        ("inside", "i8"),  # FIBER of the thread of this PE that is in a collective; 0: none
        ("launch", "i8"),  # ... and its LAUNCH
        ("lines", "i8"),  # address of the lines in which the members write to this PE
        ("boxes", "i8"),  # ... and of the boxes for what does not fit a line
        ("box_bytes", "i8"),
        ("world_pe", "i8"),  # the calling PE's number in the job
        ("span", "i8"),  # from memory of this PE to the same on the next one
        ("stage", "i8"),  # address of its memory for what is not symmetric
        ("crowded", "i8"),  # until when hosts do not yield, see `meeting.rest`
    ],
    align=True,
)
CROWDED = offset(TEAM, "crowded")
# A member's message to another one in a round. Round k uses the line of k's parity. `said` must be
# equal on all members: the kind of call, its detail (see `meeting`), and the heap offsets of dst
# and src, if the call requires that they are the same on all members, else 0.
LINE_OF = np.dtype(
    {
        "names": ["round", "said", "text"],
        "formats": ["i8", ("i8", 4), ("u1", LINE - 40)],
        "offsets": [0, 8, 40],
        "itemsize": LINE,
    }
)
BOX_BYTES = 8192  # largest message that is sent in a box
BOXES_BYTES = 1 << 20  # of all boxes of a team, per PE
HALF_BYTES = 1 << 19  # of each of the two halves of a stage
RING_BYTES = 1 << 16  # of the messages of one member to another, behind these

WORLD = np.dtype(
    [
        # The job, for kernels: the launch's `user` word points here.
        ("my_pe", "i8"),
        ("n_pes", "i8"),
        ("heap", "i8"),  # address of this PE's segment
        ("heap_bytes", "i8"),
        ("stride", "i8"),
        ("pes", "i8"),  # address of the board's records of PEs
        ("teams", "i8"),  # address of this PE's TEAMs
        ("max_teams", "i8"),
        ("cached", "i8"),  # bytes: larger copies bypass the caches
        # For kernels with debug=True, else 0: offsets (start, end) of what is allocated, sorted.
        ("blocks", "i8"),
        ("n_blocks", "i8"),
        ("journal", "i8"),  # address of this PE's notes, see `diagnosis.journal`
        ("trace", "i8"),  # address of this PE's ring of events, see `trace.ring`; 0: not traced
        ("last_qp", "i8"),  # the largest number of a queue pair, see `access.check_qp`
        ("weak", "i8"),  # address of its WEAK record, see `weak.pending`; 0: memory is not weak
        # For kernels of a job of several nodes (`nodes`):
        ("node", "i8"),  # the first PE of this node
        ("next_node", "i8"),  # ... and of the next one
        ("registered", "i8"),  # address of `ranges.Ranges`
        ("mapped", "i8"),  # the lowest address that is memory of this process
        ("far", "i8"),  # the last PE of which an array was null
        ("turn", "i8"),  # where `wait_until_any` begins to look
        ("own", "i8"),  # of a backend made on top of this one
        ("losses", "i8"),  # see `compat.losses`; 0: sizes that differ are errors of operations
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

    def __init__(self, job: Job, heap_bytes: int, more_bytes: int = 0) -> None:
        """Size the memory; a segment has `more_bytes` after its heap, on a page of their own."""
        self.job = job
        self.board = job.board
        self.stride = _whole(heap_bytes, PAGE) + _whole(more_bytes, PAGE)
        self.heap_bytes = heap_bytes
        n = job.n_pes
        rows = job.max_teams + 1
        table = _whole(rows * TEAM.itemsize, PAGE)
        box_bytes = max(LINE, min(BOX_BYTES, BOXES_BYTES // (2 * n) // LINE * LINE))
        lines, boxes = _whole(2 * n * LINE, PAGE), _whole(2 * n * box_bytes, PAGE)
        stage = 2 * HALF_BYTES + n * RING_BYTES
        span = table + rows * (lines + boxes + stage)
        self._size(job.control_fd, n * span)
        with within_limits(f"cannot map {n * span} bytes of control memory"):
            self._control = mmap.mmap(job.control_fd, n * span)
        self.control = np.frombuffer(self._control, np.uint8)
        base = job.my_pe * span
        self.teams = self.control[base : base + rows * TEAM.itemsize].view(TEAM)
        self.teams["world_pe"], self.teams["span"] = job.my_pe, span
        self.teams["box_bytes"] = box_bytes
        areas = address_of(self.teams) + table + np.arange(rows) * (lines + boxes + stage)
        self.teams["lines"], self.teams["boxes"] = areas, areas + lines
        self.teams["stage"] = areas + lines + boxes
        self.members, self.ranks = np.zeros((2, rows, n), np.int64)
        self.teams["members"] = address_of(self.members) + np.arange(rows) * 8 * n
        self.teams["ranks"] = address_of(self.ranks) + np.arange(rows) * 8 * n
        self.native = new(WORLD)
        self.native["my_pe"], self.native["n_pes"] = job.my_pe, n
        self.native["node"], self.native["next_node"] = job.node.start, job.node.stop
        self.native["pes"] = address_of(self.board.pes)
        self.native["last_qp"] = QP_DEFAULT
        self.native["cached"] = _cached()
        self.native["teams"], self.native["max_teams"] = address_of(self.teams), job.max_teams

    def record(self, team: int, pe: int) -> Any:
        """The record that a PE has of a team."""
        span = int(self.teams["span"][0])
        start = pe * span + team * TEAM.itemsize
        return self.control[start : start + TEAM.itemsize].view(TEAM)[0]

    def memory(self, address: int, nbytes: int) -> np.ndarray[Any, Any]:
        """Bytes of the control memory at an address, to read and write."""
        start = address - address_of(self.control)
        return self.control[start : start + nbytes]

    def teams_in(self, result: Any) -> Iterator[tuple[int, list[int]]]:
        """The teams that an operation has returned, if any: their numbers, and members."""
        for team in teams_in(result):
            n = int(self.teams["n_pes"][team])
            yield int(team), self.members[int(team)][:n].tolist()

    def checking(self, blocks: list[tuple[int, int]]) -> np.ndarray[Any, Any]:
        """The WORLD of kernels that check what is allocated: these (offset, bytes), sorted."""
        whole = np.zeros(WORLD.itemsize + 16 * len(blocks), np.uint8)
        world, table = whole[: WORLD.itemsize].view(WORLD), whole[WORLD.itemsize :].view(np.int64)
        world[:] = self.native
        table[:] = [edge for start, nbytes in blocks for edge in (start, start + nbytes)]
        world["blocks"], world["n_blocks"] = address_of(table), len(blocks)
        return world

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
        start, end = span(array)
        return self.heap <= start and end <= self.heap + self.heap_bytes

    def locate(self, start: int, end: int) -> tuple[int, bool] | None:
        """Offset of addresses on the heap of a PE, and whether it is this one; None: elsewhere."""
        pe, offset = divmod(start - self.region, self.stride)
        if not 0 <= pe < self.job.n_pes or offset + end - start > self.heap_bytes:
            return None
        return offset, pe == self.job.my_pe

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


def _cached() -> int:
    """Up to how many bytes, read and written, a copy goes through the caches.

    Four times the core's own: beyond, stores past the caches were 1.2 to 2 times as fast, with the
    time in which another core then reads what has been copied. How large the shared cache is says
    little: cores share it, and virtual machines do not know their part.
    """
    known = os.sysconf("SC_LEVEL2_CACHE_SIZE") if "SC_LEVEL2_CACHE_SIZE" in os.sysconf_names else 0
    return 4 * (known if known > 0 else 1 << 20)


def _whole(nbytes: int, unit: int) -> int:
    return -(-nbytes // unit) * unit


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
