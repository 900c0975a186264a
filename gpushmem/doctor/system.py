"""The interface to the machine: files below a root, programs, versions, environment.

All checks use a `System`, so that a test can supply a directory tree and the output of programs,
and see the results for another machine.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

__all__ = ["System"]

PATIENCE = 15  # seconds for a program: nvidia-smi is slow without the persistence daemon


def _run(words: Sequence[str]) -> str | None:
    if shutil.which(words[0]) is None:
        return None
    try:
        done = subprocess.run(
            list(words), capture_output=True, text=True, errors="replace", timeout=PATIENCE,
            check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _installed() -> dict[str, str]:
    """Return installed distributions by normalised name; the first found is the one imported."""
    found: dict[str, str] = {}
    for distribution in metadata.distributions():
        name = distribution.metadata["Name"]
        if name:  # leftovers of broken installations have no name
            found.setdefault(name.lower().replace("_", "-").replace(".", "-"), distribution.version)
    return found


def _locate(package: str, folder: str) -> str | None:
    try:
        files = metadata.distribution(package).files or ()
    except metadata.PackageNotFoundError:
        return None
    for file in files:
        if folder in str(file.parent):
            return str(Path(str(file.locate())).parent)
    return None


def _room(path: Path) -> tuple[int, int] | None:
    try:
        sizes = os.statvfs(path)
    except OSError:
        return None
    return sizes.f_blocks * sizes.f_frsize, sizes.f_bavail * sizes.f_frsize


def _memfd() -> None:
    os.close(os.memfd_create("gpushmem-probe"))


def _pidfd() -> None:
    os.close(os.pidfd_open(os.getpid()))


PROBES: dict[str, Callable[[], None]] = {"memfd_create": _memfd, "pidfd_open": _pidfd}


def _probe(call: str) -> str | None:
    """Return why a system call does not work here; None if it does."""
    try:
        PROBES[call]()
    except (OSError, AttributeError) as error:
        return str(error)
    return None


@dataclass(frozen=True)
class System:
    """A machine; by default this one. The fields are its replaceable parts.

    `run` returns a program's output, None if it is missing or fails; `room` a file system's size
    and free bytes; `probe` why a system call fails; `locate` the folder of an installed package
    whose path ends in the given text.
    """

    root: Path = Path("/")
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    run: Callable[[Sequence[str]], str | None] = _run
    find: Callable[[str], str | None] = shutil.which
    packages: Mapping[str, str] = field(default_factory=_installed)
    locate: Callable[[str, str], str | None] = _locate
    room: Callable[[Path], tuple[int, int] | None] = _room
    probe: Callable[[str], str | None] = _probe
    platform: tuple[str, str] = field(default_factory=lambda: (os.uname()[0], os.uname()[4]))

    def path(self, path: str) -> Path:
        """Return where `path`, absolute on the machine, is."""
        return self.root / path.lstrip("/")

    def read(self, path: str) -> str | None:
        """Return a file's text, stripped; None if it cannot be read."""
        try:
            return self.path(path).read_text(errors="replace").strip()
        except (OSError, ValueError):  # a port that is down answers EINVAL
            return None

    def number(self, path: str) -> int | None:
        """Return a file's integer, decimal or 0x...; None if there is none."""
        text = self.read(path) or ""
        try:
            return int(text, 16 if text.startswith("0x") else 10)
        except ValueError:
            return None

    def names(self, path: str) -> list[str]:
        """Return the entries of a folder, sorted, numbers by value; empty if it does not exist."""
        try:
            names = os.listdir(self.path(path))
        except OSError:
            return []
        return sorted(names, key=lambda name: (len(name), name) if name.isdigit() else (0, name))

    def exists(self, path: str) -> bool:
        """Whether a file, folder or device exists."""
        return self.path(path).exists()

    def status(self, path: str) -> tuple[int, int] | None:
        """Return the owner of a regular file and the bytes that it takes; None if there is none."""
        try:
            found = self.path(path).lstat()
        except OSError:
            return None
        return (found.st_uid, 512 * found.st_blocks) if stat.S_ISREG(found.st_mode) else None

    def variable(self, name: str) -> str:
        """Return an environment variable's text; empty if it is not set."""
        return self.environ.get(name, "").strip()

    def table(self, path: str) -> dict[str, str]:
        """Parse a file of lines `key: value`, common in /proc."""
        lines = (self.read(path) or "").splitlines()
        pairs = (line.partition(":") for line in lines if ":" in line)
        return {key.strip(): value.strip() for key, _, value in pairs}
