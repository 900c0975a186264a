"""Counters of what a PE does: how often, how many bytes, how long; without a trace.

They are in a file that the PE maps, so those of a PE that was killed are there, too: a row for each
kind of event of the trace (`ring`), and the bytes that it has moved to and from each PE. Compiled
code adds to them atomically. Times are ticks of the processor's clock, as in a ring.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gpushmem.errors import ShmemError
from gpushmem.ops import OPS
from gpushmem.size import format_size
from gpushmem.trace.ring import CALL, COMPILE, FIRST_OP, KERNEL, MEET

__all__ = ["COUNTERS", "N_ROWS", "ROW", "ROWS_AT", "Count", "Counters", "Stats", "read"]

# The fields by which clocks are compared are those of `ring.RING`.
COUNTERS = np.dtype(
    [
        ("magic", "i8"),
        ("pe", "i8"),
        ("n_pes", "i8"),
        ("put", "i8"),  # address of the bytes that it has put, by PE
        ("got", "i8"),  # ... and got
        ("ticks", "i8", 2),
        ("ns", "i8", 2),
        ("held", "i8"),  # bytes of symmetric arrays now
        ("peak", "i8"),  # ... and at most
    ]
)
ROW = np.dtype([("calls", "i8"), ("nbytes", "i8"), ("ticks", "i8")])
ROWS_AT = 128
N_ROWS = FIRST_OP + len(OPS)
MAGIC = 0x544E554F43  # "COUNT"


class Count(NamedTuple):
    """How often something was done, the bytes that it moved, and the time that it took.

    `seconds` are those of all threads that did it: where 32 wait at once for a second, it is 32.
    """

    calls: int = 0
    nbytes: int = 0
    seconds: float = 0.0

    def __sub__(self, other: Count) -> Count:
        return Count(
            self.calls - other.calls, self.nbytes - other.nbytes, self.seconds - other.seconds
        )


@dataclass(frozen=True)
class Stats:
    """What a PE has done so far: `gpushmem.stats()`, and a difference of two.

    `operations`: of each one that has returned, in kernels and on the host, by name. `kernels`:
    launches that have ended, and the time they ran. `compiling`: preparing launches, where that
    took a while. `meetings`: host calls that all PEs make, such as `zeros`. `host_waits`: other
    calls in which the host waits, such as `synchronize`. `put`, `got`: bytes that operations have
    put to and got from each PE. `heap_peak`: bytes of symmetric arrays, at most. `str()` formats
    it.
    """

    pe: int
    operations: dict[str, Count]
    kernels: Count
    compiling: Count
    meetings: Count
    host_waits: Count
    put: tuple[int, ...]
    got: tuple[int, ...]
    heap_peak: int

    @property
    def waiting(self) -> Count:
        """All operations in which a thread waits for other PEs."""
        found = [count for name, count in self.operations.items() if OPS[name].waits]
        return Count(sum(c.calls for c in found), 0, sum(c.seconds for c in found))

    def __sub__(self, before: Stats) -> Stats:
        """What the PE has done since `before`; `heap_peak` stays what it is."""
        none = Count()
        operations = {
            name: count - before.operations.get(name, none)
            for name, count in self.operations.items()
        }
        return Stats(
            self.pe,
            {name: count for name, count in operations.items() if count.calls},
            self.kernels - before.kernels,
            self.compiling - before.compiling,
            self.meetings - before.meetings,
            self.host_waits - before.host_waits,
            tuple(np.subtract(self.put, before.put).tolist()),
            tuple(np.subtract(self.got, before.got).tolist()),
            self.heap_peak,
        )

    def __str__(self) -> str:
        lines = [
            f"PE {self.pe}: {self.kernels.calls} launches, {self.kernels.seconds:.3g} s in "
            f"kernels, {format_size(sum(self.put))} put, {format_size(sum(self.got))} got, "
            f"{self.waiting.seconds:.3g} s waiting"
        ]
        for name, count in self.operations.items():
            moved = f", {format_size(count.nbytes)}" if count.nbytes else ""
            lines.append(f"  {name}: {count.calls} calls{moved}, {count.seconds:.3g} s")
        return "\n".join(lines)


class Counters:
    """The counters of the calling PE, in the place of a `ring.Ring`."""

    def __init__(self, folder: Path, pe: int, n_pes: int) -> None:
        """Raises `ShmemError` where the file cannot be made."""
        nbytes = ROWS_AT + N_ROWS * ROW.itemsize + 16 * n_pes
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with open(_path(folder, pe), "w+b") as file:
                os.posix_fallocate(file.fileno(), 0, nbytes)
                self._memory = mmap.mmap(file.fileno(), nbytes)
        except OSError as error:
            raise ShmemError(f"no counters can be kept in {folder}: {error.strerror}") from None
        whole = np.frombuffer(self._memory, np.uint8)
        self.header = whole[: COUNTERS.itemsize].view(COUNTERS)
        self.address = self.header.ctypes.data
        self.header["pe"], self.header["n_pes"] = pe, n_pes
        self.header["put"] = self.address + nbytes - 16 * n_pes
        self.header["got"] = self.address + nbytes - 8 * n_pes
        self.header["magic"] = MAGIC
        self._arrays: dict[int, int] = {}

    def give_back(self) -> None:
        """Nothing: they take as much of the disk as they need."""

    def describe(self, **facts: Any) -> None:
        """Facts of a trace: of arrays, their bytes are counted."""
        if "array" in facts:
            self._arrays[facts["array"]] = facts["bytes"]
        elif "freed" in facts:
            self._arrays.pop(facts["freed"], None)
        else:
            return
        held = sum(self._arrays.values())
        self.header["held"], self.header["peak"] = held, max(held, int(self.header["peak"][0]))

    def texts_since(self, seen: int) -> tuple[tuple[()], tuple[()], int]:
        """There are none."""
        return (), (), seen

    def stats(self) -> Stats:
        """What they say."""
        return _stats(np.frombuffer(self._memory, np.uint8))


def read(folder: Path) -> list[Stats]:
    """The counters of all PEs that have left some in a folder, in order."""
    found = [np.fromfile(path, np.uint8) for path in folder.glob("pe*.counters")]
    whole = [data for data in found if data[: COUNTERS.itemsize].view(COUNTERS)["magic"] == MAGIC]
    return sorted(map(_stats, whole), key=lambda stats: stats.pe)


def _path(folder: Path, pe: int) -> Path:
    return folder / f"pe{pe}.counters"


def _stats(data: np.ndarray[Any, Any]) -> Stats:
    header = data[: COUNTERS.itemsize].view(COUNTERS)[0]
    rows = data[ROWS_AT : ROWS_AT + N_ROWS * ROW.itemsize].view(ROW)
    n = int(header["n_pes"])
    put, got = data[len(data) - 16 * n :].view(np.int64).reshape(2, n).tolist()
    (first, last), (since, until) = header["ticks"].tolist(), header["ns"].tolist()
    per_tick = (until - since) / (last - first) / 1e9 if last > first else 0.0
    count = partial(_count, rows, per_tick)
    operations = {name: count(FIRST_OP + k) for k, name in enumerate(OPS)}
    return Stats(
        int(header["pe"]),
        {name: each for name, each in operations.items() if each.calls},
        count(KERNEL),
        count(COMPILE),
        count(MEET),
        count(CALL),
        tuple(put),
        tuple(got),
        int(header["peak"]),
    )


def _count(rows: np.ndarray[Any, Any], per_tick: float, kind: int) -> Count:
    calls, nbytes, ticks = rows[kind].tolist()
    return Count(calls, nbytes, ticks * per_tick)
