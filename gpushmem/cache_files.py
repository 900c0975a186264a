"""Checked files in the user's cache folder: whole records of bytes, by name.

A file for each name: a digest, then the data. Files are written elsewhere and renamed, so readers
see all of one or nothing. What cannot be read, or is not what its digest says, counts as missing:
a broken folder, a full disk, a quota only cost time, and a line of warning. The files take at most
GPUSHMEM_CACHE_SIZE bytes: those that were used least recently are deleted first.

The cache holds machine code, which is executed. Therefore nothing is read from, or written to, a
folder or file that is owned or writable by another user (other than root).
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import secrets
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import platformdirs

from gpushmem import settings

__all__ = [
    "SHIPPED", "clear", "complain", "contents", "enabled", "folder", "has", "load", "opened",
    "save", "shipped", "speak",
]  # fmt: skip

HEAD = b"gpushmem 1\n"
DIGEST_BYTES = 32
HEAD_BYTES = len(HEAD) + DIGEST_BYTES
DAY = 86400.0
MINUTE = 60.0  # how exactly is known when a record was used
UNUSED = 30 * DAY  # after which a record is deleted
HALF_WRITTEN = DAY / 24  # after which a temporary file, or a lock, is
MOST_BYTES = 2 << 30  # of one file
RECORD = re.compile(r"[0-9a-f]{64}(\.engine)?")
# What may be deleted: records, their locks, and orders that the checker has named.
OURS = re.compile(r"[0-9a-f]{64}(\.engine)?(\.lock)?|writing-\w+|[0-9a-f]{8}\.schedule")
SHIPPED = Path(__file__).parent / "compiled"  # records that were installed with the package
PRUNED = "pruned"  # a file that is touched when that has been done,
PRUNING = 1.0  # which is seconds ago, at least, when it is done again
SAFELY = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # no link is followed, no FIFO waited for
READ = os.O_RDONLY | SAFELY
WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | SAFELY


class Unusable(OSError):
    """A folder or file that fails the checks: damaged, or not owned by this user alone."""


def folder() -> Path:
    """Return the cache folder: GPUSHMEM_CACHE_DIR, else the user's cache folder."""
    return Path(settings.get("GPUSHMEM_CACHE_DIR") or platformdirs.user_cache_dir("gpushmem"))


def enabled() -> bool:
    """Whether the user wants records to be kept: GPUSHMEM_CACHE."""
    return bool(settings.get("GPUSHMEM_CACHE"))


def load(name: str) -> bytes | None:
    """The data kept under a name; None if there is none that can be trusted."""
    if not enabled():
        return None
    with _reported(), suppress(FileNotFoundError), opened() as directory:
        try:
            return _read(directory, name)
        except Unusable:
            _remove(directory, name)  # other processes would fail on it, too
            raise
    return None


def has(name: str, seconds: float = math.inf) -> bool:
    """Whether there is a file of this name that has changed in the last `seconds`."""
    if enabled():
        with suppress(OSError):
            return time.time() - (folder() / name).stat().st_mtime < seconds
    return False


def shipped(name: str) -> bytes | None:
    """The data that came under a name with this package; None if there is none that is whole."""
    with suppress(OSError):
        whole = (SHIPPED / name).read_bytes()
        head, data = whole[:HEAD_BYTES], whole[HEAD_BYTES:]
        if head == _head(name, data):
            return data
    return None


def save(name: str, data: bytes) -> bool:
    """Keep data under a name; returns whether that was possible."""
    limit = settings.get("GPUSHMEM_CACHE_SIZE")
    if not enabled() or len(data) > min(limit, MOST_BYTES) - HEAD_BYTES:
        return False
    with _reported(), opened(make=True) as directory:
        _write(directory, name, _head(name, data) + data)
        _prune(directory, time.time(), limit)
        return True
    return False


def contents() -> tuple[int, int]:
    """How many records there are, and their bytes; raises `OSError` if the folder is not used."""
    with suppress(FileNotFoundError), opened() as directory:
        sizes = [n for _, n, name in _ages(directory, 0) if RECORD.fullmatch(name)]
        return len(sizes), sum(sizes)
    return 0, 0


def clear() -> tuple[int, int]:
    """Delete all records; returns how many, and their bytes. Raises `OSError` where it cannot."""
    gone = []
    with suppress(FileNotFoundError), opened() as directory:
        for _, nbytes, name in _ages(directory, 0):
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=directory)
                gone += [nbytes] if RECORD.fullmatch(name) else []
    return len(gone), sum(gone)


def _head(name: str, data: bytes) -> bytes:
    return HEAD + hashlib.sha256(name.encode() + b"\n" + data).digest()


# --- reading and writing


@contextmanager
def opened(make: bool = False) -> Iterator[int]:
    """Open the folder as a descriptor, if it passes the checks; raises `OSError`."""
    path = folder()
    if make:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _check_owner(os.fstat(directory), str(path))
        yield directory
    finally:
        os.close(directory)


def _check_owner(status: os.stat_result, what: str) -> None:
    """Refuse files that another user could have written."""
    if status.st_uid not in (0, os.geteuid()):
        raise Unusable(f"{what} belongs to another user ({status.st_uid})")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise Unusable(
            f"other users may write to {what} (mode {stat.S_IMODE(status.st_mode):o}): "
            "chmod go-w, or delete it"
        )


def _read(directory: int, name: str) -> bytes:
    status = os.stat(name, dir_fd=directory, follow_symlinks=False)
    if not stat.S_ISREG(status.st_mode) or status.st_size > MOST_BYTES:
        raise Unusable(f"{folder() / name} is not a cache file of gpushmem")
    with open(os.open(name, READ, dir_fd=directory), "rb") as file:
        status = os.fstat(file.fileno())
        _check_owner(status, str(folder() / name))
        whole = file.read()
        head, data = whole[:HEAD_BYTES], whole[HEAD_BYTES:]
        if head != _head(name, data):
            raise Unusable(f"{folder() / name} is damaged ({len(whole)} bytes)")
        if abs(time.time() - status.st_mtime) > MINUTE:  # it is used: see `_prune`
            with suppress(OSError):
                os.utime(file.fileno())
        return data


def _remove(directory: int, name: str) -> None:
    for remove in (os.unlink, os.rmdir):
        with suppress(OSError):
            remove(name, dir_fd=directory)


def _write(directory: int, name: str, data: bytes) -> None:
    """Write the file atomically."""
    elsewhere = f"writing-{secrets.token_hex(8)}"
    try:
        with open(os.open(elsewhere, WRITE, 0o600, dir_fd=directory), "wb") as file:
            file.write(data)
        os.rename(elsewhere, name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        with suppress(OSError):
            os.unlink(elsewhere, dir_fd=directory)
        raise


# --- warnings


def _write_line(text: str) -> None:
    with suppress(Exception):  # stderr may be closed
        sys.stderr.write(text)
        sys.stderr.flush()


_complained = False
_speaks = True


def speak(whether: bool) -> None:
    """Warn in this process, or do not: one PE of a job is enough."""
    global _speaks  # noqa: PLW0603
    _speaks = whether


def complain(reason: str) -> None:
    """Print, once, that compiled code is not cached, and why."""
    global _complained  # noqa: PLW0603
    if _speaks and not _complained:
        _complained = True
        _write_line(
            f"gpushmem: {reason}. The code is compiled again "
            "(GPUSHMEM_CACHE_DIR sets the cache folder, GPUSHMEM_CACHE=0 turns the cache off)\n"
        )


@contextmanager
def _reported() -> Iterator[None]:
    try:
        yield
    except Unusable as error:
        complain(str(error))
    except (OSError, MemoryError) as error:
        complain(f"{folder()} cannot be used for compiled code: {error}")


# --- pruning


def _prune(directory: int, now: float, limit: int) -> None:
    """Delete what has not been used for long, and of too much what was used least recently."""
    with suppress(OSError):
        if abs(now - os.stat(PRUNED, dir_fd=directory).st_mtime) < PRUNING:
            return
    with suppress(OSError):
        os.close(os.open(PRUNED, WRITE & ~os.O_EXCL, 0o600, dir_fd=directory))
        os.utime(PRUNED, dir_fd=directory)
        kept = 0
        for age, nbytes, name in sorted(_ages(directory, now)):
            kept += nbytes
            oldest = UNUSED if RECORD.fullmatch(name) else HALF_WRITTEN
            if age > oldest or kept > limit:
                with suppress(OSError):
                    os.unlink(name, dir_fd=directory)


def _ages(directory: int, now: float) -> Iterator[tuple[float, int, str]]:
    """Yield seconds since last use, size in bytes, and name of each cache file."""
    with os.scandir(directory) as entries:
        for entry in entries:
            if OURS.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                with suppress(FileNotFoundError):  # deleted meanwhile
                    status = entry.stat(follow_symlinks=False)
                    yield now - status.st_mtime, status.st_size, entry.name
