"""What was compiled for GPUs, on disk: so that it is done once for a machine, not once a process.

A file for each key: a line of JSON, what is known of the code, then the code. A file is written
elsewhere and renamed, so readers see all of it or nothing; what cannot be read counts as not there,
and a folder that cannot be written to only costs time. Nothing is ever deleted but by the user.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import platformdirs

__all__ = ["Kept", "folder", "key", "load", "store"]


class Kept(NamedTuple):
    """An entry: what is known of the code, and the code."""

    about: dict[str, Any]
    code: bytes


def folder() -> Path:
    """Where the files are: GPUSHMEM_CACHE_DIR, else the user's folder for such things."""
    return Path(
        __import__("os").environ.get("GPUSHMEM_CACHE_DIR")
        or platformdirs.user_cache_dir("gpushmem")
    )


def key(*parts: Any) -> str:
    """The name of what is made of `parts`, which have to be texts, numbers and tuples of these."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def load(name: str) -> Kept | None:
    """An entry, None if it is not there."""
    try:
        line, _, code = (folder() / name).read_bytes().partition(b"\n")
        return Kept(json.loads(line), code)
    except (OSError, ValueError):
        return None


def store(name: str, about: dict[str, Any], code: bytes) -> Kept:
    """Keep an entry, if that is possible; return it."""
    with suppress(OSError):
        folder().mkdir(parents=True, exist_ok=True)
        handle, name_now = tempfile.mkstemp(dir=folder(), prefix="writing-")
        path = Path(name_now)
        try:
            with open(handle, "wb") as file:
                file.write(json.dumps(about).encode() + b"\n" + code)
            path.replace(folder() / name)
        except BaseException:
            path.unlink()
            raise
    return Kept(about, code)
