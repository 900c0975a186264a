"""A job in parts, so that what is kept of it does not grow with its length.

Between two parts all PEs have met, and the host of each knew its launches to be over. So all that
comes later is in order with all that was before: the parts have no races with each other, and
clocks begin anew in each. What one part leaves to the next is `Earlier`: the numbers that words
were, and which memory was written. A job that never meets like that is one part.

A part is analysed while the job goes on, and its records are then removed from the disk. A PE whose
log is full waits for that, unless it is in vain: then the log ends there, and the report says so.
"""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

import numpy as np

from gpushmem.check import log
from gpushmem.check.calls import ROWS
from gpushmem.check.log import HEADER, LOG, RECORD, Trace

__all__ = ["Parts", "followed"]

PART = 50_000  # records of all PEs that are worth a part
EVERY = 0.5  # seconds between two looks at the logs
PUNCH_HOLE, KEEP_SIZE = 2, 1


class _Log:
    """The log of a PE, which grows."""

    def __init__(self, path: Path) -> None:
        self.pe, self._path = int(path.stem[2:]), path
        self._header = np.memmap(path, LOG, "r+", 0, (1,))
        self.begin = self.end = 0  # of the part that is next, as far as there are records
        self._scanned = self._removed = 0
        self.facts: list[dict[str, Any]] = []
        self._side = open(path.with_suffix(".json"), encoding="utf-8")  # noqa: SIM115
        self._rest = ""
        # Meetings: where they begin, whether all that was is known, of which kind they are.
        self.met: list[tuple[int, bool, int]] = []
        # These, and where the host waits for launches.
        self.synced: list[tuple[int, bool, int]] = []
        self._teams: set[int] = set()
        self._running: dict[int, int] = {}  # launches, with their streams
        self._ended: set[int] = set()

    def look(self) -> None:
        """Read what is new."""
        header = self._header[0]
        self.end = min(int(header["n"]), int(header["most"]))
        text = self._rest + self._side.read()
        *lines, self._rest = text.split("\n")
        self.facts += map(json.loads, lines)
        new = self.records(self._scanned)
        kinds = new["kind"]
        barriers = np.isin(new["words"][:, 0], BARRIERS) & (new["launch"] == 0)
        hosts = np.flatnonzero(np.isin(kinds, [*HOSTS]) & ((kinds != log.OP) | barriers))
        # The newest one may not be complete; what the host has called before is.
        mains = hosts[kinds[hosts] != log.END][:-1]
        for k in hosts[hosts <= mains[-1]].tolist() if len(mains) else ():
            HOSTS[int(kinds[k])](self, new[k], self._scanned + k + 1)
        self._scanned += int(mains[-1]) + 1 if len(mains) else 0

    def records(self, begin: int, end: int | None = None) -> Any:
        n = (self.end if end is None else end) - begin
        if n <= 0:
            return np.zeros(0, RECORD)
        return np.memmap(self._path, RECORD, "r", HEADER + begin * RECORD.itemsize, (n,))

    def part(self, end: int | None = None) -> Trace:
        """The next part; None: all that is left."""
        n = int(self._header[0]["n"])
        lost = n - self.end if end is None else 0
        full = bool(self._header["most"][0] < self._removed + log.MOST)
        return Trace(self.pe, self.records(self.begin, end), self.facts, lost, full)

    def remove(self, end: int) -> None:
        """Give back the room on the disk of the records before `end`, for others."""
        page = os.sysconf("SC_PAGESIZE")
        first = HEADER + self.begin * RECORD.itemsize // page * page  # before it all is removed
        last = HEADER + end * RECORD.itemsize // page * page
        self.begin = end
        with open(self._path, "r+b") as file:
            if last > first and _fallocate(file.fileno(), first, last - first):
                self._removed = end
                self._header["most"] = end + log.MOST

    def is_full(self) -> bool:
        return bool(self._header["n"][0] > self._header["most"][0])

    def give_up(self) -> None:
        """Let a PE whose log is full go on."""
        self._header["followed"] = 0

    def close(self) -> None:
        self.give_up()
        self._side.close()

    # --- what hosts do

    def _submit(self, record: Any, _: int) -> None:
        number, _, stream, *_ = record["words"].tolist()
        self._running[number] = stream

    def _end(self, record: Any, _: int) -> None:
        self._ended.add(int(record["launch"]))

    def _sync(self, record: Any, place: int) -> None:
        before, one, stream, *_ = record["words"].tolist()
        for number, its in list(self._running.items()):
            waited = number == one or (number < before and its >= 0)
            if number in self._ended and (waited or (stream != 0 and its == stream)):
                for other, of_other in list(self._running.items()):
                    if other == number or (other < number and of_other == its >= 0):
                        self._running.pop(other)
                        self._ended.discard(other)
        self.synced.append((place, not self._running, log.SYNC))

    def _call(self, record: Any, place: int) -> None:
        if record["words"][0] == 0:
            self._meet(log.CALL, place)

    def _barrier(self, record: Any, place: int) -> None:
        if record["words"][3] not in self._teams:
            self._meet(log.OP, place)

    def _team(self, record: Any, _: int) -> None:
        self._teams.add(int(record["words"][0]))

    def _meet(self, kind: int, place: int) -> None:
        self.met.append((place, not self._running, kind))
        self.synced.append(self.met[-1])


HOSTS: dict[int, Callable[[_Log, Any, int], None]] = {
    log.SUBMIT: _Log._submit, log.END: _Log._end, log.SYNC: _Log._sync, log.CALL: _Log._call,
    log.OP: _Log._barrier, log.TEAM: _Log._team,
}  # fmt: skip
BARRIERS = [number for number, op in enumerate(ROWS) if op.facts.orders == "barrier"]


def _fallocate(fd: int, start: int, nbytes: int) -> bool:
    """Remove a piece of a file, and leave a hole; whether that was possible."""
    c = ctypes.CDLL(None, use_errno=True)
    c.fallocate.argtypes = ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64
    return bool(c.fallocate(fd, PUNCH_HOLE | KEEP_SIZE, start, nbytes) == 0)


class Parts:
    """The parts of a job, from the logs in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._logs = folder, dict[int, _Log]()
        self._met = 0  # meetings, or waits, that are in earlier parts

    def __iter__(self) -> Iterator[list[Trace]]:
        """The parts that are left when the job has ended."""
        while True:
            cut = self._look(PART)
            if cut is None:
                yield [each.part() for each in self._in_order()]
                break
            yield self._part(cut)
            for each, end in zip(self._in_order(), cut, strict=True):
                each.begin = end
        for each in self._logs.values():
            each.close()

    def ready(self) -> Iterator[list[Trace]]:
        """The parts that are complete while the job goes on; what was yielded is then removed."""
        while True:
            full = any(each.is_full() for each in self._logs.values())  # before we look
            cut = self._look(0 if full else PART)
            if cut is None:
                break
            yield self._part(cut)
            for each, end in zip(self._in_order(), cut, strict=True):
                each.remove(end)
        if full:  # and waits: the PEs cannot meet any more
            for each in self._logs.values():
                each.give_up()

    def _in_order(self) -> list[_Log]:
        return [self._logs[pe] for pe in sorted(self._logs)]

    def _part(self, cut: list[int]) -> list[Trace]:
        return [each.part(end) for each, end in zip(self._in_order(), cut, strict=True)]

    def _look(self, least: int) -> list[int] | None:
        """Where the next part ends, of more records than that; None: that is not known yet."""
        for path in self._folder.glob("pe*.log"):
            if int(path.stem[2:]) not in self._logs and path.with_suffix(".json").exists():
                self._logs[int(path.stem[2:])] = _Log(path)
        for each in self._logs.values():
            each.look()
        logs = self._in_order()
        n_pes = max((f["n_pes"] for each in logs for f in each.facts if "n_pes" in f), default=1)
        if len(logs) != n_pes:
            return None
        places = [each.met if n_pes > 1 else each.synced for each in logs]
        for k in range(self._met, min(map(len, places))):
            ends, known, kinds = zip(*(of_log[k] for of_log in places), strict=True)
            records = sum(end - each.begin for end, each in zip(ends, logs, strict=True))
            if records > least and all(known) and len(set(kinds)) == 1:
                self._met = k
                return list(ends)
        return None


@contextmanager
def followed(folder: Path, see: Callable[[list[Trace]], None]) -> Iterator[Parts]:
    """While a job runs whose logs are in a folder, let `see` have the parts that are complete."""
    parts, over, errors = Parts(folder), Event(), list[BaseException]()

    def follow() -> None:
        try:
            while not over.wait(EVERY):
                for traces in parts.ready():
                    see(traces)
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    (folder / "followed").touch()
    thread = Thread(target=follow, name="gpushmem check", daemon=True)
    thread.start()
    try:
        yield parts
    finally:
        over.set()
        thread.join()
        (folder / "followed").unlink()
    if errors:
        raise errors[0]
