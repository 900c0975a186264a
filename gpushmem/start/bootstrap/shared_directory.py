"""Meeting through a private directory, when only a launcher's environment variables are known.

PE 0 writes its address, and the job's key, to a file that only this user can read, in a directory
that only this user can use, under a name that all PEs derive from the launcher's variables. A stale
file of an earlier job does no harm: nothing at its address knows its key, so the PEs read the file
again until PE 0 has replaced it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import stat
import tempfile
from collections.abc import Iterable
from pathlib import Path

from gpushmem.errors import BootstrapError
from gpushmem.start.bootstrap.channel import Channel, Deadline

__all__ = ["Directory", "ancestor", "job_id"]

LARGEST = 1 << 16
# Process names, as the system shows them (15 characters), of launchers.
STARTERS = {
    "hydra_pmi_proxy", "mpiexec.gforker", "mpiexec.hydra", "mpiexec", "mpirun", "orted", "orterun",
    "prted", "prterun", "prte", "slurmstepd",
}  # fmt: skip


class Directory(Channel):
    """PEs on one machine that know their numbers and the name of their job."""

    def __init__(self, my_pe: int, n_pes: int, found: str, job: str) -> None:
        self._folder = _folder()
        self._path = self._folder / f"job-{hashlib.sha256(job.encode()).hexdigest()[:32]}"
        super().__init__(my_pe, n_pes, found, f"through {self._path}", "there is no such file")
        self._written: bytes | None = None

    def say(self, identity: bytes) -> None:
        """Do nothing: PE 0 cannot be reached before its file is read; it is on this machine."""

    def gather(self, deadline: Deadline) -> dict[int, bytes]:
        return {}

    def announce(self, answer: bytes) -> None:
        part = self._path.with_name(f".{secrets.token_hex(8)}")
        for attempt in range(100):
            _private(self._folder)
            try:
                _write(part, answer)
                part.rename(self._path)
                self._written = answer
                return
            except OSError as error:
                with contextlib.suppress(OSError):
                    part.unlink()
                # Another job may have removed the directory at its end: retry.
                if not isinstance(error, FileNotFoundError) or attempt == 99:
                    raise BootstrapError(f"cannot write {self._path}: {error.strerror}") from None

    def answer(self, deadline: Deadline) -> bytes | None:
        try:
            found = _read(self._path) if _private(self._folder, make=False) else None
        except OSError as error:
            self.failed(f"it cannot be read: {error.strerror}")
            return None
        return found

    def close(self) -> None:
        if self._written is None:
            return
        with contextlib.suppress(OSError):
            if _read(self._path) == self._written:  # else it now belongs to another job
                self._path.unlink()
            self._folder.rmdir()
        self._written = None


def _folder() -> Path:
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    if not (base and Path(base).is_dir() and os.access(base, os.W_OK)):
        base = tempfile.gettempdir()
    return Path(base) / f"gpushmem-{os.getuid()}"


def _private(folder: Path, make: bool = True) -> bool:
    """Whether the directory exists; `make` creates it. Raises unless only this user can use it."""
    try:
        if make:
            with contextlib.suppress(FileExistsError):
                folder.mkdir(mode=0o700)
        found = folder.lstat()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise BootstrapError(f"cannot make the directory {folder}: {error.strerror}") from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise BootstrapError(
            f"{folder} is not a directory that only this user can use (owner {found.st_uid}, "
            f"mode {stat.S_IMODE(found.st_mode):o}): the job's key would not be safe there. "
            "Remove it, or set XDG_RUNTIME_DIR or TMPDIR to another directory"
        )
    return True


def _write(path: Path, data: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(path, flags, 0o600)
    with open(fd, "wb") as file:
        file.write(data)


def _read(path: Path) -> bytes | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    with open(fd, "rb") as file:
        about = os.fstat(fd)
        private = about.st_uid == os.getuid() and not about.st_mode & 0o077
        if not stat.S_ISREG(about.st_mode) or not private:
            raise PermissionError(0, "other users can access it")
        return file.read(LARGEST)


# --- a name for the job


def job_id(variables: Iterable[str]) -> str:
    """Return a text that is equal for all PEs of a job, and different for other running jobs.

    Uses the first of the launcher's variables that is set (best first), else the process that
    started the PEs.
    """
    for name in variables:
        if os.environ.get(name):
            return f"{name}={os.environ[name]}"
    return ancestor()


def ancestor() -> str:
    """Return pid and start time of the ancestor that is a launcher, else of the parent."""
    pid, parent = os.getppid(), ""
    for _ in range(64):
        try:
            head, tail = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)
        except OSError:
            break
        fields = tail.split()
        this = f"process {pid} started {fields[19]}"
        parent = parent or this
        if head.split("(", 1)[1] in STARTERS:
            return this
        pid = int(fields[1])
    return parent
