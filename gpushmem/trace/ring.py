"""The ring of one PE's events: a file of records that kernels and the host append to.

The file is memory that the PE maps, so what has been recorded is there when the PE is killed. The
ring keeps the newest events: of more than `most`, the oldest are overwritten, and the reader says
how many. Beside the ring is a file of facts in msgpack, a map after the other: what numbers in
events mean. A fact is written when it becomes known, so a PE that is killed leaves those, too.

An event's place is its number modulo `most`. One thread writes it, with plain stores; an event that
is completed later (a wait, a kernel) is found by its number, and left alone if another has its
place by then. Times are ticks of the processor's clock; the header has pairs of these and of
nanoseconds of CLOCK_MONOTONIC, which all PEs of a machine share.

A PE on a GPU has two rings: the host's, and one of what kernels have appended to a ring in the
GPU's memory, from where the host copies it. That one has times of the GPU's clock.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from gpushmem.errors import ArgumentError, ShmemError
from gpushmem.ops import OPS
from gpushmem.size import format_size

__all__ = [
    "BLOCK", "CALL", "COMPILE", "CORES", "EVENT", "FIRST_OP", "HEADER", "KERNEL", "KINDS",
    "KIND_OF", "LAUNCH", "MAGIC", "MEET", "NO_PE", "PLACES", "RANGE", "RING", "THREADS",
    "VERSION", "Ring", "facts_of", "gpu_path", "opened", "paths", "prepare",
]  # fmt: skip

PUNCH_HOLE = 3  # of fallocate(2); the file keeps its size
_libc = ctypes.CDLL(None)
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]

VERSION = 1
MAGIC = 0x4543415254  # "TRACE"
HEADER = mmap.PAGESIZE
EVENT = np.dtype(
    [
        ("began", "i8"),  # ticks
        ("ended", "i8"),  # ticks; 0: not yet
        ("site", "i8"),  # a number of the facts' `site`, of a source line; 0: none
        ("at", "i8"),  # heap offset of what it is about; -1: none
        ("value", "i8"),  # as the kind says
        ("nbytes", "i8"),  # that it moves
        ("kind", "u2"),
        ("thread", "u2"),  # number in the block, plus that of the core * 1024
        ("pe", "i4"),  # the other PE; NO_PE: none
        ("launch", "u4"),  # number of the kernel's event, plus 1, modulo 2**32; 0: the host
        ("block", "u4"),  # number in the grid; of the host: of its thread
    ]
)
# `n`, how many events there have been, is on a cache line of its own, which it shares with nobody
# but `lost`: how many more were overwritten on the GPU before the host had copied them.
RING = np.dtype(
    {
        "names": [
            "magic", "version", "pe", "n_pes", "most", "events", "ticks", "ns", "pid", "n", "lost",
        ],
        "formats": ["i8"] * 6 + [("i8", 2)] * 2 + ["i8"] * 3,
        "offsets": [*range(0, 56, 8), 64, 80, 128, 136],
        "itemsize": 192,
    }
)  # fmt: skip
# Bytes from the beginning of the header to each of its words.
PLACES = {name: int(field[1]) for name, field in (RING.fields or {}).items()}
NO_PE = -1
THREADS, CORES = 1024, 63  # of a block, at most; the cores that are told apart, less one
# Kinds of events; from FIRST_OP on, the operations, in the order of the table.
# `value`: number of the stream, from 1; `at`: how many blocks; `nbytes`: threads of a block; `pe`:
# of its name.
KERNEL = 1
BLOCK = 2  # of a kernel that waits
CALL = 3  # of the host, which no row of the table stands for: `value` is its name's
LAUNCH = 4  # the host queues a kernel: `value` is its name's
MEET = 5  # a call that all PEs make, and in which they meet: `value` is its name's
COMPILE = 6  # the host prepares a launch, and that takes a while: `value` is the kernel's name's
RANGE = 7  # that the program names: `value` is its name's
FIRST_OP = 16
KIND_OF = {name: FIRST_OP + k for k, name in enumerate(OPS)}
KINDS = {
    KERNEL: "kernel", BLOCK: "block", CALL: "call", LAUNCH: "launch", MEET: "meet",
    COMPILE: "compile", RANGE: "range",
}  # fmt: skip


def paths(folder: Path, pe: int) -> tuple[Path, Path]:
    """The files of a PE: its ring, and its facts."""
    return folder / f"pe{pe}.ring", folder / f"pe{pe}.facts"


def gpu_path(folder: Path, pe: int) -> Path:
    """The ring of what a PE's kernels do on its GPU, if there is one."""
    return folder / f"pe{pe}.gpu.ring"


def prepare(folder: str | Path) -> str:
    """Make a folder ready for a trace, in the place of one that is there; returns its full name.

    Raises `ArgumentError` if it cannot be written.
    """
    folder = Path(folder)
    with _written_to(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for path in (path for what in ("ring", "facts") for path in folder.glob(f"pe*.{what}")):
            path.unlink()
    return str(folder.absolute())


@contextmanager
def _written_to(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ArgumentError(f"no trace can be written to {folder}: {error.strerror}") from None


def _reserve(folder: Path, fd: int, n_pes: int, nbytes: int) -> None:
    """A store to a page that the disk has no room for would kill the PE."""
    free = shutil.disk_usage(folder).free
    try:
        if free < nbytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # before others feel it
        os.posix_fallocate(fd, 0, nbytes)
    except OSError as error:
        os.ftruncate(fd, 0)
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        raise ShmemError(
            f"the trace of {n_pes} PEs may take {format_size(n_pes * nbytes)}, and {folder} has "
            f"room for {format_size(free)} more ({error.strerror}): choose another folder, or set "
            "GPUSHMEM_TRACE_EVENTS to fewer events"
        ) from None


class Ring:
    """A ring of the calling PE: the host's, or that of its GPU."""

    def __init__(self, folder: Path, pe: int, n_pes: int, most: int, gpu: bool = False) -> None:
        """`most`: events, a power of two. Raises `ShmemError` where there is no room for them."""
        ring, facts = paths(folder, pe)
        ring = gpu_path(folder, pe) if gpu else ring
        nbytes = HEADER + most * EVENT.itemsize
        with _written_to(folder):
            folder.mkdir(parents=True, exist_ok=True)
            with open(ring, "w+b") as file:
                _reserve(folder, file.fileno(), n_pes, nbytes)
                self._memory = mmap.mmap(file.fileno(), nbytes)
        self._path = ring
        whole = np.frombuffer(self._memory, np.uint8)
        self.header = whole[: RING.itemsize].view(RING)
        self.events = whole[HEADER:].view(EVENT)
        self.address = self.header.ctypes.data
        self.header["version"], self.header["pe"], self.header["n_pes"] = VERSION, pe, n_pes
        self.header["most"], self.header["events"] = most, self.events.ctypes.data
        self.header["pid"], self.header["magic"] = os.getpid(), MAGIC
        if not gpu:  # numbers mean the same in both
            self._facts = open(facts, "wb")  # noqa: SIM115  (as long as the PE lives)
            self._pack = _msgpack().Packer()
            self.describe(operations=list(OPS))

    def extend(self, events: np.ndarray[Any, Any]) -> int:
        """Append events, by one thread at a time; returns the number of the first one."""
        first, most = int(self.header["n"][0]), len(self.events)
        kept = events[-most:]
        start = (first + len(events) - len(kept)) % most
        end = min(len(kept), most - start)
        self.events[start : start + end] = kept[:end]
        self.events[: len(kept) - end] = kept[end:]
        self.header["n"] = first + len(events)
        return first

    def give_back(self) -> None:
        """Give the disk back what no event has needed; later ones may take it again."""
        used = HEADER + min(int(self.header["n"][0]), len(self.events)) * EVENT.itemsize
        start, end = -(-used // mmap.PAGESIZE) * mmap.PAGESIZE, len(self._memory)
        with suppress(OSError), open(self._path, "r+b") as file:  # it may have been deleted
            if end > start:
                _libc.fallocate(file.fileno(), PUNCH_HOLE, start, end - start)

    def event(self, number: int) -> np.ndarray[Any, Any]:
        """The event of a number, as an array of one; empty if another has its place."""
        most = len(self.events)
        there = 0 <= number < int(self.header["n"][0]) <= number + most
        return self.events[number % most :][: int(there)]

    def describe(self, **facts: Any) -> None:
        """Keep what a number, or this PE, means."""
        self._facts.write(self._pack.pack(facts))
        self._facts.flush()

    def texts_since(self, seen: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], int]:
        """The addresses of texts in the events from number `seen` on that are left.

        Of lines, and of names of kernels' ranges; and how many events there have been.
        """
        n, most = int(self.header["n"][0]), int(self.header["most"][0])
        places = np.arange(max(seen, n - most), n) & (most - 1)
        sites, kinds = self.events["site"][places], self.events["kind"][places]
        ranges = self.events[places[kinds == RANGE]]
        return sites[sites > 0], ranges["value"][ranges["launch"] != 0], n


def _msgpack() -> Any:
    """For those who trace: it takes longer to import than what `init` needs of this module."""
    return import_module("msgpack")


def facts_of(path: Path) -> list[dict[str, Any]]:
    """The facts in a file, but for one that was being written when its PE was killed."""
    unpacker = _msgpack().Unpacker(strict_map_key=False)
    with opened(path) as file:
        unpacker.feed(file.read())
    return list(unpacker)


def opened(path: Path) -> BinaryIO:
    """A file of a trace, to be read; raises `ArgumentError` if it is none."""
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise ArgumentError(f"{path} is not a file")
    return file
