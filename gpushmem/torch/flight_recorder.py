"""A record of the last collectives, written to the files that PyTorch's flight recorder writes.

`python -m torch.distributed.flight_recorder.fr_trace FOLDER` reads them. It has the settings of
PyTorch, too: with `TORCH_FR_BUFFER_SIZE` (calls that are kept) or `TORCH_FR_DUMP_TEMP_FILE` (the
files' path, without the rank at its end) set, there is a record. When a collective fails, all ranks
write theirs, also those that are not in a collective.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, TypedDict

from torch import Tensor

from gpushmem.errors import ArgumentError

__all__ = ["FlightRecorder", "current", "dump", "start", "stop"]

VERSION = "2.10"  # of the format
SIZE = "TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"
FILE = "TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"
KEPT = "2000"  # calls, if nothing else is said
LOOK, GRACE = 0.2, 3.0  # seconds: between looks at the store, and for others to write their files
ASKED, WRITTEN = "gpushmem_flight_recorder/asked", "gpushmem_flight_recorder/written"
# Our names -> those that the analyser knows; of the others both are the same.
NAMES = {
    "all_gather_into_tensor": "_all_gather_base", "reduce_scatter_tensor": "_reduce_scatter_base",
    "all_to_all_single": "all_to_all",
}  # fmt: skip
LIBRARY = "gloo"  # the analyser refuses libraries that it does not know
Run = Callable[[float], None]
Tensors = Sequence[Tensor] | Sequence[Sequence[Tensor]]


class Name(TypedDict):
    """What PyTorch calls a group."""

    name: str
    desc: str


class Entry:
    """One call of a group."""

    state = "scheduled"
    started = completed = 0

    def __init__(self, group: Name, ids: tuple[int, int], what: str, tensors: Any) -> None:
        self.group, (self.record_id, self.number), self.what = group, ids, what
        self.seconds = 0.0
        self.created = time.time_ns()
        self.inputs, self.outputs = (_described(each) for each in tensors)
        self.frames = _frames()

    def around(self, run: Run) -> Run:
        """The same call, which says how far it is."""

        def noted(seconds: float) -> None:
            self.state, self.started, self.seconds = "started", time.time_ns(), seconds
            run(seconds)
            self.state, self.completed = "completed", time.time_ns()

        return noted

    def written(self, pg_id: int) -> dict[str, Any]:
        """As the files have it."""
        return {
            "record_id": self.record_id, "pg_id": pg_id,
            "process_group": (self.group["name"], self.group["desc"]),
            "collective_seq_id": self.number, "p2p_seq_id": 0, "op_id": self.number,
            "profiling_name": f"{LIBRARY}:{NAMES.get(self.what, self.what)}",
            "time_created_ns": self.created, "input_sizes": self.inputs[0],
            "input_dtypes": self.inputs[1], "output_sizes": self.outputs[0],
            "output_dtypes": self.outputs[1], "state": self.state,
            "time_discovered_started_ns": self.started or None,
            "time_discovered_completed_ns": self.completed or None,
            "duration_ms": (self.completed - self.started) / 1e6 if self.completed else None,
            "retired": self.state == "completed", "timeout_ms": int(self.seconds * 1000),
            "is_p2p": False,
            "frames": [
                {"name": code.co_name, "filename": code.co_filename, "line": line}
                for code, line in self.frames
            ],
        }  # fmt: skip


class FlightRecorder:
    """The record of one rank of a job, whose ranks tell each other by a store when to write it."""

    def __init__(self, rank: int, n_ranks: int, store: Any, size: int, prefix: str) -> None:
        self._rank, self._n, self.path = rank, n_ranks, Path(f"{prefix}{rank}")
        self._store = store.clone()  # a wait of the program's must not keep us
        self._entries: deque[Entry] = deque(maxlen=size)
        self._ids = count()
        self._groups: list[tuple[Name, list[int]]] = []
        self._writing = threading.Lock()
        self._over = threading.Event()
        self._told = False  # that this rank has written, for all to know
        threading.Thread(target=self._watch, name="gpushmem-flight-recorder", daemon=True).start()

    def add_group(self, name: Name, pes: Sequence[int]) -> None:
        """Know a group, which gets its name later."""
        self._groups.append((name, list(pes)))

    def around(self, run: Run, group: Name, number: int, what: str, tensors: Any) -> Run:
        """Note a call of a group; `run` makes it, and so does what is returned."""
        entry = Entry(group, (next(self._ids), number), what, tensors)
        self._entries.append(entry)
        return entry.around(run)

    def dump(self, path: Path | None = None) -> Path:
        """Write the record to a file; returns its path."""
        path = path or self.path
        numbers = {id(name): k for k, (name, _) in enumerate(self._groups)}
        record = {
            "version": VERSION,
            "pg_config": {n["name"]: {**n, "ranks": str(pes)} for n, pes in self._groups},
            "pg_status": {}, "comm_lib_version": "gpushmem",
            "entries": [entry.written(numbers[id(entry.group)]) for entry in [*self._entries]],
        }  # fmt: skip
        with self._writing:
            path.parent.mkdir(parents=True, exist_ok=True)
            new = path.with_name(f".{path.name}.{os.getpid()}")
            new.write_bytes(pickle.dumps(record))
            new.replace(path)  # whoever reads it sees a whole one
        return path

    def failed(self) -> None:
        """A call has failed: let all ranks write, and give them time before this one ends."""
        with suppress(RuntimeError):  # the store may have gone with its rank
            self._store.set(ASKED, "1")
            self._tell()
            limit = time.monotonic() + GRACE
            while self._store.add(WRITTEN, 0) < self._n and time.monotonic() < limit:
                time.sleep(LOOK / 10)

    def _tell(self) -> None:
        self.dump()
        with self._writing:
            first, self._told = not self._told, True
        if first:
            self._store.add(WRITTEN, 1)

    def _watch(self) -> None:
        with suppress(RuntimeError):
            while not self._over.wait(LOOK):
                if self._store.check([ASKED]):
                    self._tell()
                    break

    def close(self) -> None:
        """End its thread."""
        self._over.set()


def start(rank: int, n_ranks: int, store: Any) -> None:
    """Begin a record, if a setting asks for one."""
    global _current  # noqa: PLW0603
    size, prefix = _setting(SIZE), _setting(FILE)
    if not (size or prefix) or size == "0":
        return
    if not (size or KEPT).isdigit():
        raise ArgumentError(f"{SIZE[0]}={size}: a number of calls is expected, such as {KEPT}")
    folder = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    prefix = prefix or f"{folder}/torch/comm_lib_trace_rank_"
    stop()
    _current = FlightRecorder(rank, n_ranks, store, int(size or KEPT), prefix)


def stop() -> None:
    """End the record. It can still be written."""
    if _current is not None:
        _current.close()


def current() -> FlightRecorder | None:
    """The record of this process."""
    return _current


def dump(path: str | Path | None = None) -> Path:
    """Write this rank's record now, to `path` or where the setting says; returns the path.

    Raises `ArgumentError` if there is none.
    """
    if _current is None:
        raise ArgumentError(f"there is no record: set {SIZE[0]}=2000 before init_process_group")
    return _current.dump(None if path is None else Path(path))


_current: FlightRecorder | None = None


def _setting(names: Iterable[str]) -> str:
    return next(filter(None, (os.environ.get(name) for name in names)), "")


def _described(tensors: Tensors) -> tuple[list[list[int]], list[str]]:
    """Sizes and dtypes; a list of tensors for all members counts as one tensor."""
    sizes, dtypes = [], []
    for each in tensors:
        parts = [each] if isinstance(each, Tensor) else each
        shapes = {part.shape for part in parts}
        sizes.append(
            [*each.shape] if isinstance(each, Tensor)
            else [len(parts), *shapes.pop()] if len(shapes) == 1
            else [sum(part.numel() for part in parts)]
        )  # fmt: skip
        dtypes += sorted({str(part.dtype).removeprefix("torch.") for part in parts})
    return sizes, dtypes


def _frames() -> list[tuple[CodeType, int]]:
    """Who calls, the innermost first, without this library."""
    frame: FrameType | None = sys._getframe(1)
    found = []
    while frame is not None:
        if not frame.f_globals.get("__name__", "").startswith("gpushmem.torch."):
            found.append((frame.f_code, frame.f_lineno))
        frame = frame.f_back
    return found
