"""What one PE records while it is checked: a file of records, and what the numbers in them mean.

Kernels and the host append to the same file, which is memory that they share, so nothing is lost
when the PE is killed. `stamp` numbers the events of all PEs: one that another depends on has the
smaller number. A run of plain loads and stores has the stamp of its first access; between which
events of their threads the others took place, the `clock` tells (`instrumentation`). A run of loads
has the number that is next: it begins before all that write with this stamp or a larger one.
"""

from __future__ import annotations

import atexit
import ctypes
import json
import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from threading import get_ident
from typing import Any, NamedTuple

import numpy as np

from gpushmem.errors import ArgumentError
from gpushmem.source_lines import users_files

__all__ = [
    "ACCESS",
    "ARRIVED",
    "BEGIN",
    "CALL",
    "CALL_OF_WARP",
    "CONTENTS",
    "DIVERGED",
    "DONE",
    "EFFECT",
    "END",
    "EXPOSED",
    "HEADER",
    "HOST",
    "LEFT",
    "LOG",
    "MESSAGE",
    "MET",
    "NO_INTEGER",
    "OP",
    "PIECE",
    "RECORD",
    "REFUSED",
    "SUBMIT",
    "SYNC",
    "TEAM",
    "THREADFENCE",
    "UPDATE",
    "VALUE",
    "Log",
    "Record",
    "Trace",
    "as_records",
    "read",
]  # fmt: skip

RECORD = np.dtype(
    [
        ("stamp", "i8"),
        ("kind", "i8"),
        ("launch", "i8"),  # number of the launch; 0: the host
        ("thread", "i8"),  # number of the thread in the launch, or of the host's threads
        ("clock", "i8"),  # of the thread: meetings of its block << 32 | its own events
        ("site", "i8"),  # address of a text, or, of the host, minus a number of a line
        ("words", "i8", 6),  # as the kind says
    ]
)
# `n`, the number of records, comes first. The disk has room for `reserved` of them; `most` is
# lowered to that where it has no more: a store to a page without room would kill the PE.
# `schedule`: the address of that of `turns`, 0 if there is none. `followed`: whether somebody reads
# the log while it is written, so that it is worth waiting for room (`parts`). `seed`: by which
# threads give way to others (`turns.give_way`), 0 if they do not.
LOG = np.dtype(
    [
        (name, "i8")
        for name in (
            "n", "most", "records", "stamp", "reserved", "fd", "pe", "schedule", "followed", "seed",
        )
    ]
)  # fmt: skip
MOST = 1 << 23  # records: 800 MB, of which what is not written takes no room
WHOLE = 1 << 32  # records that a log may have in the course of time, if what is read is removed
PIECE = 1 << 15  # records for which room is reserved at a time: 3 MB
# Shared memory has addresses of its own: the number of the block and the offset, from SHARED on.
SHARED, BLOCK_BITS = 1 << 62, 24
PHASE = 32  # bits of a clock below the meetings of the block
ROWS, HOW = 32, 4  # bits of words of an ACCESS, see there
HEADER = mmap.PAGESIZE
SIGN = 1 << 63


# Kinds of records, and the words that each has. 0: not written, as the PE was killed.
# Address, bytes from one to the next, how many; rows of them << ROWS | size << 2 | threads to the
# next row << 1 | threads to the next; bytes to the next row << HOW | how; the integer that all
# store, if `how` says so.
ACCESS = 1
# Number of the row, effects << 8 | NO_INTEGER or 0 | scope, pe, team or queue pair, comparison or
# signal's op, value or the set of queue pairs.
OP = 2
# Of the OP before it: number of the effect, address, bytes, stride, size; of a matrix the number
# plus its rows << 8, and of one row the bytes without gaps, the stride, the size; row to row.
EFFECT = 3
# An operation has returned: number of the row, result, what that is (0 a number, 1 a truth, 2
# neither, REFUSED: it has raised an error, of the host's), its turn (`turns`); of a poll two words
# more (`instrumentation`).
DONE = 4
MET = 5  # a barrier of the block: number of the block, its meetings so far
ARRIVED = 6  # at a barrier of a warp or the grid: 0 or 1, mask of lanes
LEFT = 7  # ... has left it, or a call of the whole warp: CALL_OF_WARP
# By the host: the launch, threads per block, its stream, which arrays there are, whether all blocks
# are sure to run at the same time.
SUBMIT = 8
BEGIN = 9  # of a launch
END = 10
# The host has waited for all launches with smaller numbers, for this one, or for this stream.
SYNC = 11
CALL = 12  # of the host, all PEs call: 0 before, 1 after
TEAM = 13  # the PE is in a new team: its number, the number of its members' description
HOST = 14  # reads or writes memory of this PE: address, bytes, how, to the next piece, pieces
UPDATE = 15  # by an atomic operation: address, what | used << 8, operand, expected, old, its turn
THREADFENCE = 16  # scope
CONTENTS = 17  # of an array of a wait: 0 for values, 1 for status, 2 for indices; index, number
EXPOSED = 18  # the host has an array, which it may write to unseen: as HOST
VALUE = 19  # what the HOST before it sets integers to: address, bytes, number
# Of the thread that makes it: another has come to the same meeting of the block at another line,
# whose site this is, and its number.
DIVERGED = 20
# Between hosts: 0 sent, 1 received; of whom, to whom, row of the team, tag, how many before it.
MESSAGE = 21

NO_INTEGER = 1 << 7  # the value is that of a float
CALL_OF_WARP = 2
REFUSED = 3


class Log:
    """The log of the calling PE.

    `add` and `reserve` are `instrumentation`'s, which kernels that write to it use, too.
    """

    def __init__(
        self,
        folder: Path,
        pe: int,
        stamp: int,
        add: Callable[[int, int], int],
        reserve: Callable[[int, int], None],
    ) -> None:
        self._add, self._reserve = add, reserve
        followed = (folder / "followed").exists()
        try:
            self._file = open(folder / f"pe{pe}.log", "w+b")  # noqa: SIM115
            os.posix_fallocate(self._file.fileno(), 0, HEADER)
            memory = self._mapped(WHOLE if followed else MOST)
        except OSError as error:
            with suppress(OSError):
                (folder / f"pe{pe}.log").unlink()
            raise ArgumentError(
                f"GPUSHMEM_CHECK={folder}: cannot write there ({error.strerror}); it is set by "
                "`gpushmem run --check`, for its PEs"
            ) from None
        whole = np.frombuffer(memory, np.uint8)
        self._log = whole[: LOG.itemsize].view(LOG)
        self._records = whole[HEADER:].view(RECORD)
        self.address = self._log.ctypes.data
        self._log["most"], self._log["stamp"] = MOST, stamp
        self._log["followed"] = followed
        self._log["fd"] = self._file.fileno()
        self._log["records"] = self._records.ctypes.data
        self._log["pe"] = pe
        self._lines: dict[str, int] = {}
        self._texts: dict[int, str] = {}
        self._read = 0  # records whose sites are known
        self.launches = 0
        self._threads: dict[int, int] = {}  # of the host: by their ident
        self._side = open(folder / f"pe{pe}.json", "w", encoding="utf-8")  # noqa: SIM115
        for file in (self._file, self._side):  # kernels write until the process ends
            atexit.register(file.close)

    def _mapped(self, most: int) -> mmap.mmap:
        """The file, with room for so many records, or for MOST of them."""
        size = HEADER + most * RECORD.itemsize
        try:
            os.ftruncate(self._file.fileno(), size)
            return mmap.mmap(self._file.fileno(), size)
        except OSError:
            if most == MOST:
                raise
            return self._mapped(MOST)

    def describe(self, **facts: Any) -> None:
        """Keep what a number, or this PE, means; on a full disk the log ends here."""
        try:
            self._side.write(json.dumps(facts) + "\n")
            self._side.flush()
        except OSError:
            self._log["most"] = min(self._log["most"][0], self._log["n"][0])

    def give_way(self, seed: int) -> None:
        """Let threads give way at operations, as a seed says; as 0 says not at all."""
        self._log["seed"] = seed

    def follow(self, schedule: int) -> None:
        """Let operations take their turns."""
        self._log["schedule"] = schedule

    def append(
        self, kind: int, launch: int = 0, site: int = 0, words: tuple[int, ...] = (), clock: int = 0
    ) -> int:
        """Append a record of the host; returns its stamp. Of words the lower 64 bits are kept."""
        index = self._room(1)
        stamp = self._add(int(self._log["stamp"][0]), 1)
        words = tuple((word + SIGN) % (2 * SIGN) - SIGN for word in (*words, 0, 0, 0, 0, 0, 0)[:6])
        thread = 0 if launch else self.thread()
        if index < self._log["most"][0]:
            self._records[index] = (stamp, kind, launch, thread, clock, site, words)
        return stamp

    def thread(self) -> int:
        """The number of the calling thread among those of the host."""
        return self._threads.setdefault(get_ident(), len(self._threads))

    def line(self, text: str, path: str) -> int:
        """The number, as a site, of a line of the host's."""
        number = self._lines.get(text)
        if number is None:
            number = self._lines[text] = -1 - len(self._lines)
            self.describe(site=number, text=text, path=path)
        return number

    def launch_number(self) -> int:
        """A number for a launch."""
        self.launches += 1
        return self.launches

    def flush(self, launch: int, places: np.ndarray[Any, Any] | None, slot: Any) -> None:
        """Append the accesses that a launch which has ended has in its places."""
        if places is not None:
            slots = places.view(slot)
            rows = {name: slots[name] for name in ("rows", "pitch", "turn")}
            self._append_runs(launch, slots["first"], **rows)
            self._append_runs(launch, slots["run"], slots["run"]["most"] > 0)
            places[:] = 0
        self._note_sites()

    def _append_runs(
        self, launch: int, runs: Any, rows: Any, pitch: Any = 0, turn: Any = 0
    ) -> None:
        """Append runs of accesses, of each as many rows as there are."""
        records = np.zeros(len(runs), RECORD)
        records["kind"], records["launch"] = ACCESS, launch
        for name in ("stamp", "thread", "clock", "site"):
            records[name] = runs[name]
        words = records["words"]
        words[:, 0], words[:, 1], words[:, 5] = runs["address"], runs["stride"], runs["value"]
        words[:, 2] = runs["most"] - runs["left"]
        words[:, 3] = rows.astype("i8") << ROWS | runs["nbytes"] << 2 | turn << 1 | runs["step"]
        words[:, 4] = pitch << HOW | runs["how"]
        records = records[rows > 0]
        start = self._room(len(records))
        room = self._records[start : min(start + len(records), int(self._log["most"][0]))]
        room[:] = records[: len(room)]

    def _room(self, many: int) -> int:
        """Take places for so many records; returns the first. Some may be beyond `most`."""
        first = self._add(self.address, many)
        self._reserve(self.address, first + many)
        return first

    def _note_sites(self) -> None:
        """Write down the texts of sites that are new: they go with this process."""
        end = min(int(self._log["n"][0]), int(self._log["most"][0]))
        new = self._records[self._read : end]
        others = new["words"][new["kind"] == DIVERGED, 0]
        for site in np.unique(np.concatenate([new["site"], others])).tolist():
            if site > 0 and site not in self._texts:
                self._texts[site] = ctypes.string_at(site).decode()
                self.describe(site=site, text=self._texts[site], path="")
        self._read = end

    def end(self) -> None:
        """Write down where the user's modules are; the PE may go on to record."""
        self._note_sites()
        named = {text.partition(":")[0] for text in self._texts.values()}
        files = {name: path for name, path in users_files().items() if name in named}
        self.describe(files=files)


class Record(NamedTuple):
    """One of them, as Python's integers; see RECORD."""

    stamp: int
    kind: int
    launch: int
    thread: int
    clock: int
    site: int
    words: list[int]


def as_records(rows: np.ndarray[Any, Any]) -> Iterator[Record]:
    """The rows of a log."""
    return map(Record, *(rows[name].tolist() for name in Record._fields))


class Trace(NamedTuple):
    """What one PE has recorded."""

    pe: int
    records: np.ndarray[Any, Any]
    facts: list[dict[str, Any]]
    lost: int  # records for which there was no room
    of_disk: bool = False  # ... as the disk is full


def read(folder: Path) -> Iterator[Trace]:
    """The logs in a folder."""
    for path in sorted(folder.glob("pe*.log"), key=lambda path: int(path.stem[2:])):
        log = np.fromfile(path, LOG, 1)[0]
        n = min(int(log["n"]), int(log["most"]))
        records = np.memmap(path, RECORD, "r", HEADER, (n,)) if n else np.zeros(0, RECORD)
        side = path.with_suffix(".json").read_text(encoding="utf-8").splitlines()
        facts = [json.loads(line) for line in side if line.endswith("}")]
        lost = int(log["n"]) - n
        yield Trace(int(path.stem[2:]), records, facts, lost, int(log["most"]) < MOST)
