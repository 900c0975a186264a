"""The on-disk cache of compiled code, so that code is compiled once per machine, not per process.

Each entry is a file: a digest, then the data. Files are written under a temporary name and renamed,
so a reader sees either a complete file or none. A file that cannot be read, or whose digest does
not match, counts as absent and is made again: a broken folder, a full disk or a quota cost only
time, and one line of warning.

The cache holds machine code, which is executed. Therefore nothing is read from, or written to, a
folder or file that is owned or writable by another user (other than root).
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import platformdirs

from gpushmem import settings

__all__ = ["complain", "folder", "load", "name_of", "opened", "save", "speak_for"]

HEAD = b"gpushmem 1\n"
DIGEST_BYTES = 32
DAY = 86400.0
UNUSED = 30 * DAY  # a file not used for this long is deleted
HALF_WRITTEN = DAY / 24  # a temporary file older than this is deleted
MOST_BYTES = 2 << 30  # total size; the oldest files are deleted first
OURS = re.compile(r"[0-9a-f]{64}(\.lock)?|writing-\w+")  # names that may be deleted
PRUNED = "pruned"  # touched at each pruning
READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW


class Unusable(OSError):
    """A folder or file that fails the checks: damaged, or not owned by this user alone."""


def folder() -> Path:
    """Return the cache folder: GPUSHMEM_CACHE_DIR, else the user's cache folder."""
    return Path(settings.get("GPUSHMEM_CACHE_DIR") or platformdirs.user_cache_dir("gpushmem"))


def name_of(*parts: Any) -> str:
    """Return a content key: the digest of `parts` (texts, numbers, and tuples of these)."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def load(name: str) -> bytes | None:
    """Return the data stored under a name; None if there is none that can be trusted."""
    if not settings.get("GPUSHMEM_CACHE"):
        return None
    with _reported(), suppress(FileNotFoundError), opened() as directory:
        try:
            return _read(directory, name)
        except Unusable:
            _remove(directory, name)  # other processes would fail on it, too
            raise
    return None


def save(name: str, data: bytes) -> None:
    """Store data under a name, if possible."""
    if not settings.get("GPUSHMEM_CACHE"):
        return
    with _reported(), opened(make=True) as directory:
        _write(directory, name, _head(name, data) + data)
        _prune(directory, time.time())


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
        head, data = whole[: len(HEAD) + DIGEST_BYTES], whole[len(HEAD) + DIGEST_BYTES :]
        if head != _head(name, data):
            raise Unusable(f"{folder() / name} is damaged ({len(whole)} bytes)")
        if abs(time.time() - status.st_mtime) > DAY:  # mark it as used, for `_prune`
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


def _speak(text: str) -> None:
    with suppress(Exception):  # stderr may be closed
        sys.stderr.write(text)
        sys.stderr.flush()


_complained = False
_first: Callable[[], bool] | None = None


def speak_for(first: Callable[[], bool] | None) -> None:
    """Set the function that tells whether this is the job's first complaint; None: no job."""
    global _first  # noqa: PLW0603
    _first = first


def complain(reason: str) -> None:
    """Print, once, that compiled code is not cached, and why."""
    global _complained  # noqa: PLW0603
    if not _complained:
        _complained = True
        if _first is None or _first():
            _speak(
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


def _prune(directory: int, now: float) -> None:
    """Once a day, delete files not used for long, and the oldest ones beyond the size limit."""
    with suppress(OSError):
        if abs(now - os.stat(PRUNED, dir_fd=directory).st_mtime) < DAY:
            return
    with suppress(OSError):
        os.close(os.open(PRUNED, WRITE & ~os.O_EXCL, 0o600, dir_fd=directory))
        os.utime(PRUNED, dir_fd=directory)
        kept = 0
        for age, nbytes, name in sorted(_ages(directory, now)):
            kept += nbytes
            limit = UNUSED if len(name) == 2 * DIGEST_BYTES else HALF_WRITTEN
            if age > limit or kept > MOST_BYTES:
                with suppress(OSError):
                    os.unlink(name, dir_fd=directory)


def _ages(directory: int, now: float) -> Iterator[tuple[float, int, str]]:
    """Yield seconds since last use, size in bytes, and name of each cache file."""
    with os.scandir(directory) as entries:
        for entry in entries:
            if OURS.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                status = entry.stat(follow_symlinks=False)
                yield now - status.st_mtime, status.st_size, entry.name
