"""What was compiled for GPUs, kept on disk (`gpushmem.disk`).

An entry is a line of JSON, what is known of the code, then the code. Who makes one holds a lock
(which the system takes back from a process that dies), so that PEs that need the same wait for one
of them.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, NamedTuple

from gpushmem import disk
from gpushmem.disk import name_of as key

__all__ = ["Kept", "key", "made"]


class Kept(NamedTuple):
    """An entry: what is known of the code, and the code."""

    about: dict[str, Any]
    code: bytes


def made(name: str, make: Callable[[], Kept]) -> Kept:
    """An entry: from disk, or made by one of the processes that need it now."""
    kept = _load(name)
    if kept is None:
        with _claimed(name):
            kept = _load(name)
            if kept is None:
                kept = make()
                disk.save(name, json.dumps(kept.about).encode() + b"\n" + kept.code)
    return kept


def _load(name: str) -> Kept | None:
    line, found, code = (disk.load(name) or b"").partition(b"\n")
    return Kept(json.loads(line), code) if found else None


@contextmanager
def _claimed(name: str) -> Iterator[None]:
    """Be the only process that makes this entry, where the folder's file system has locks."""
    lock = f"{name}.lock"
    with ExitStack() as stack:
        with suppress(OSError):
            directory = stack.enter_context(disk.opened(make=True))
            flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            file = stack.enter_context(open(os.open(lock, flags, 0o600, dir_fd=directory), "wb"))
            fcntl.flock(file, fcntl.LOCK_EX)
            stack.callback(_unlink, lock, directory)
        yield


def _unlink(name: str, directory: int) -> None:
    with suppress(OSError):
        os.unlink(name, dir_fd=directory)
