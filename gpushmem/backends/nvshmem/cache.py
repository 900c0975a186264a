"""What was compiled for GPUs, on disk: so that it is done once for a machine, not once a process.

A file for each key: a line of JSON, what is known of the code, then the code. A file is written
elsewhere and renamed, so readers see all of it or nothing; what cannot be read counts as not there,
and a folder that cannot be written to only costs time. Who makes an entry holds a lock (which the
system takes back from a process that dies), so that PEs that need the same wait for one of them.
Nothing is ever deleted but by the user.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import platformdirs

from gpushmem import settings

__all__ = ["Kept", "folder", "key", "made"]


class Kept(NamedTuple):
    """An entry: what is known of the code, and the code."""

    about: dict[str, Any]
    code: bytes


def folder() -> Path:
    """Where the files are: GPUSHMEM_CACHE_DIR, else the user's folder for such things."""
    return Path(settings.get("GPUSHMEM_CACHE_DIR") or platformdirs.user_cache_dir("gpushmem"))


def key(*parts: Any) -> str:
    """The name of what is made of `parts`, which have to be texts, numbers and tuples of these."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _digest(code: bytes) -> str:
    return hashlib.sha256(code).hexdigest()


def load(name: str) -> Kept | None:
    """An entry, None if it is not there."""
    try:
        line, _, code = (folder() / name).read_bytes().partition(b"\n")
        about = json.loads(line)
        return Kept(about, code) if about.pop("sha256") == _digest(code) else None
    except (OSError, ValueError, LookupError, TypeError, AttributeError):  # of a broken file
        return None


def made(name: str, make: Callable[[], Kept]) -> Kept:
    """An entry: from disk, or made by one of the processes that need it now."""
    kept = load(name)
    if kept is None:
        with _claimed(name):
            kept = load(name)
            if kept is None:
                kept = make()
                _store(name, kept)
    return kept


@contextmanager
def _claimed(name: str) -> Iterator[None]:
    """Be the only process that makes this entry, where the folder's file system has locks."""
    with ExitStack() as stack:
        with suppress(OSError):
            folder().mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(open(folder() / f"{name}.lock", "wb"))
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
        with suppress(OSError):
            (folder() / f"{name}.lock").unlink()


def _store(name: str, kept: Kept) -> None:
    """Keep an entry, if that is possible."""
    with suppress(OSError):
        handle, path = tempfile.mkstemp(dir=folder(), prefix="writing-")
        try:
            with open(handle, "wb") as file:
                about = {**kept.about, "sha256": _digest(kept.code)}
                file.write(json.dumps(about).encode() + b"\n" + kept.code)
            Path(path).replace(folder() / name)
        except BaseException:
            Path(path).unlink()
            raise
