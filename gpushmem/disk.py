"""What has been compiled, on disk: so that it is done once for a machine, not once a process.

A file for each name: a digest, then the data. Files are written elsewhere and renamed, so readers
see all of one or nothing. What cannot be read, or is not what its digest says, counts as not there
and is made again: a broken folder, a full disk, a quota only cost time, and a line of warning.

What is kept is machine code, which is executed. So nothing is taken from, or put into, a folder or
file that another user (other than root) owns or may write to.
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
UNUSED = 30 * DAY  # after which a file is deleted
HALF_WRITTEN = DAY / 24  # after which what nobody has renamed is
MOST_BYTES = 2 << 30  # of all files; the oldest go first
OURS = re.compile(r"[0-9a-f]{64}(\.lock)?|writing-\w+")  # what may be deleted
PRUNED = "pruned"  # a file that is touched when that has been done
READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW


class Unusable(OSError):
    """A folder, or a file, that is not taken for what we have kept."""


def folder() -> Path:
    """Where the files are: GPUSHMEM_CACHE_DIR, else the user's folder for such things."""
    return Path(settings.get("GPUSHMEM_CACHE_DIR") or platformdirs.user_cache_dir("gpushmem"))


def name_of(*parts: Any) -> str:
    """The name of what is made of `parts`, which have to be texts, numbers and tuples of these."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def load(name: str) -> bytes | None:
    """The data kept under a name; None if there is none that can be trusted."""
    if not settings.get("GPUSHMEM_CACHE"):
        return None
    with _reported(), suppress(FileNotFoundError), opened() as directory:
        try:
            return _read(directory, name)
        except Unusable:
            _remove(directory, name)  # so that nobody else stumbles over it
            raise
    return None


def save(name: str, data: bytes) -> None:
    """Keep data under a name, if that is possible."""
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
    """The folder's descriptor, if it is one that we use; raises `OSError`."""
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
    """Refuse what another user may have written."""
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
        raise Unusable(f"{folder() / name} is not a file of ours")
    with open(os.open(name, READ, dir_fd=directory), "rb") as file:
        status = os.fstat(file.fileno())
        _check_owner(status, str(folder() / name))
        whole = file.read()
        head, data = whole[: len(HEAD) + DIGEST_BYTES], whole[len(HEAD) + DIGEST_BYTES :]
        if head != _head(name, data):
            raise Unusable(f"{folder() / name} is damaged ({len(whole)} bytes)")
        if abs(time.time() - status.st_mtime) > DAY:  # it is used: see `_prune`
            with suppress(OSError):
                os.utime(file.fileno())
        return data


def _remove(directory: int, name: str) -> None:
    for remove in (os.unlink, os.rmdir):
        with suppress(OSError):
            remove(name, dir_fd=directory)


def _write(directory: int, name: str, data: bytes) -> None:
    """Have the file, whole, at once."""
    elsewhere = f"writing-{secrets.token_hex(8)}"
    try:
        with open(os.open(elsewhere, WRITE, 0o600, dir_fd=directory), "wb") as file:
            file.write(data)
        os.rename(elsewhere, name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        with suppress(OSError):
            os.unlink(elsewhere, dir_fd=directory)
        raise


# --- what goes wrong


def _speak(text: str) -> None:
    with suppress(Exception):  # nobody reads
        sys.stderr.write(text)
        sys.stderr.flush()


_complained = False
_first: Callable[[], bool] | None = None


def speak_for(first: Callable[[], bool] | None) -> None:
    """Ask `first` whether nobody else of the job has complained; None: this process is alone."""
    global _first  # noqa: PLW0603
    _first = first


def complain(reason: str) -> None:
    """Say, once, that compiled code is not kept, and why."""
    global _complained  # noqa: PLW0603
    if not _complained:
        _complained = True
        if _first is None or _first():
            _speak(
                f"gpushmem: {reason}. What was kept there is compiled again "
                "(GPUSHMEM_CACHE_DIR says where code is kept, GPUSHMEM_CACHE=0 keeps none)\n"
            )


@contextmanager
def _reported() -> Iterator[None]:
    try:
        yield
    except Unusable as error:
        complain(str(error))
    except (OSError, MemoryError) as error:
        complain(f"{folder()} cannot be used for compiled code: {error}")


# --- what is deleted


def _prune(directory: int, now: float) -> None:
    """Once a day, delete what has not been used for long, and the oldest of too much."""
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
    """Seconds since it was used, bytes and name of each file of ours."""
    with os.scandir(directory) as entries:
        for entry in entries:
            if OURS.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                status = entry.stat(follow_symlinks=False)
                yield now - status.st_mtime, status.st_size, entry.name
