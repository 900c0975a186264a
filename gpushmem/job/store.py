"""What one PE of a job has made and others need too: bytes by key, in memory the PEs share.

A file that only grows: how much of it is valid, then records of key, size, checksum and data. A
record is written first and counted after that, so a PE that is killed in between leaves nothing
that others read. All locks are the file's: the system takes them back from whoever dies.

Nothing here can fail a caller. What does not work, be it that the memory is full, finds nothing
and keeps nothing.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress

__all__ = ["KEY_BYTES", "Store"]

KEY_BYTES = 32
MOST_BYTES = 256 << 20  # of a store
END = struct.Struct("<q")
RECORD = struct.Struct(f"<{KEY_BYTES}sqI")
START = 16  # of the first record
LOCKS = 1 << 62  # locks are of bytes far behind the data: this one for `END` and what it counts,
CLAIMS = LOCKS + 1  # and one for each key from here
ASKED = bytes(KEY_BYTES)  # a key of no kernel: see `first`


class Store:
    """A job's store, on its descriptor, which stays the caller's.

    The descriptor must not be closed while the store is used, nor a copy of it: the system would
    take this process's locks for given back.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._index: dict[bytes, tuple[int, int, int]] = {}  # key -> place, bytes, checksum
        self._indexed = START
        # The file's locks are the process's: these are for its threads. A signal's handler may
        # come back to a lock that its thread has.
        self._claiming, self._threads = threading.RLock(), threading.RLock()
        self._busy = False

    def find(self, key: bytes) -> bytes | None:
        """The data kept under `key`, None if there is none."""
        with suppress(OSError, MemoryError), self._locked(fcntl.LOCK_SH):
            if key not in self._index:
                self._read_index()
            if key in self._index:
                at, nbytes, checksum = self._index[key]
                data = os.pread(self._fd, nbytes, at)
                return data if zlib.crc32(data) == checksum else None
        return None

    def add(self, key: bytes, data: bytes) -> None:
        """Keep `data` under `key`, or no bytes if it is too much; what is there already stays."""
        with suppress(OSError), self._locked(fcntl.LOCK_EX):
            end = self._read_index()
            if key in self._index or end != self._indexed:
                return
            at = end + RECORD.size
            if at + len(data) > MOST_BYTES:
                data = b""  # tells the others not to wait for it
            self._write(RECORD.pack(key, len(data), zlib.crc32(data)) + data, end)
            self._write(END.pack(at + len(data)), 0)

    def first(self) -> bool:
        """Whether nobody has asked before: of what a job is to say once."""
        with self.claim(ASKED):
            asked = self.find(ASKED) is not None
            self.add(ASKED, b"")
        return not asked

    @contextmanager
    def claim(self, key: bytes) -> Iterator[None]:
        """Be the one who makes what belongs to `key`, or wait for who does; then `find` again.

        When that one dies another PE comes in. In rare cases two may be in at once.
        """
        with self._claiming:
            at = CLAIMS + int.from_bytes(key[:7], "little")
            try:
                self._take(at, key)
                yield
            finally:
                with suppress(OSError):
                    fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, at)

    def _take(self, at: int, key: bytes) -> None:
        with suppress(OSError):  # such as EDEADLK, when threads of two PEs make two things
            try:
                fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, at)
            except BlockingIOError:
                fcntl.lockf(self._fd, fcntl.LOCK_SH, 1, at)  # all who wait go on together
                fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, at)
                if self.find(key) is None:
                    fcntl.lockf(self._fd, fcntl.LOCK_EX, 1, at)

    @contextmanager
    def _locked(self, how: int) -> Iterator[None]:
        with self._threads:
            if self._busy:
                raise OSError(errno.EDEADLK, "a signal came in the middle of a call")
            self._busy = True
            try:
                fcntl.lockf(self._fd, how, 1, LOCKS)
                yield
            finally:
                self._busy = False
                fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, LOCKS)

    def _read_index(self) -> int:
        """Read the records that are new; returns where the valid ones end."""
        head = os.pread(self._fd, END.size, 0)
        end = max(START, *END.unpack(head)) if len(head) == END.size else START
        size = os.fstat(self._fd).st_size
        while self._indexed + RECORD.size <= min(end, size):
            record = os.pread(self._fd, RECORD.size, self._indexed)
            key, nbytes, checksum = RECORD.unpack(record)
            at = self._indexed + RECORD.size
            if not 0 <= nbytes <= min(end, size) - at:
                break  # not ours: the rest cannot be read
            self._index.setdefault(key, (at, nbytes, checksum))
            self._indexed = at + nbytes
        return end

    def _write(self, data: bytes, at: int) -> None:
        view = memoryview(data)
        while view:
            written = os.pwrite(self._fd, view, at)
            view, at = view[written:], at + written
