"""The store of compiled code: each thing is built once, by one of all processes that need it.

`get_or_build(name, build)` is for every kind of code: kernels of both backends, C functions of the
engine, NVSHMEM's functions. The name is a digest of all that the code depends on (`key`), so what
is found under it never has to be compared with anything. It is looked for in this process, then on
disk (`cache_files`), where other processes and earlier runs have left it. Who finds it nowhere
claims it, builds it, and keeps it, while others that need it wait. A claim is a lock on a file, so
the system takes it back from a process that dies, and one of those that wait takes over. Names that
end with ENGINE are of the package's own functions, which may have been installed with it, compiled.

Nothing of this can fail a caller: where the folder cannot be used, every process builds for itself.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, TypeVar

from gpushmem import cache_files
from gpushmem.cache_files import clear, contents, folder, speak

__all__ = [
    "ENGINE", "clear", "contents", "folder", "get", "get_or_build", "has", "is_wanted", "key",
    "speak", "telling",
]  # fmt: skip

T = TypeVar("T")
ENGINE = ".engine"
BUILDING = 60.0  # seconds, at most: who was killed left its claim's file there
LOCK = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW

_objects: dict[str, Any] = {}  # what this process has built or loaded, by name
_threads: dict[str, threading.RLock] = {}  # by name: locks of files do not exclude threads
_told: list[Callable[[], object]] = []
os.register_at_fork(after_in_child=_threads.clear)


def key(*parts: Any) -> str:
    """A digest of `parts`, which have to be texts, bytes, numbers, None and tuples of these."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def get(name: str, load: Callable[[bytes], T]) -> T | None:
    """What is kept under a name; None if there is nothing."""
    found = _objects.get(name) or _load(name, load)
    if found is not None:
        _objects[name] = found
    return found


def has(name: str) -> bool:
    """Whether something is kept under a name."""
    return name in _objects or cache_files.has(name)


def is_wanted(name: str) -> bool:
    """Whether nothing is kept under a name, and, most probably, nobody builds it."""
    return not has(name) and not cache_files.has(f"{name}.lock", BUILDING)


@contextmanager
def telling(tell: Callable[[], object]) -> Iterator[None]:
    """Call `tell()`, as long as inside, before anything is built that is then kept."""
    _told.append(tell)
    try:
        yield
    finally:
        _told.remove(tell)


def get_or_build(
    name: str,
    build: Callable[[], T],
    dump: Callable[[T], bytes | None],
    load: Callable[[bytes], T],
    keep: bool = True,
) -> T:
    """The object called `name`: this process's, or loaded from disk, or built and kept there.

    `dump` makes bytes of it, or None if only this process can use it; `load` is the inverse. With
    `keep` false other processes are neither asked nor told. Raises what `build` raises.
    """
    with _threads.setdefault(name, threading.RLock()):
        if name not in _objects:
            found = _installed(name, load) if keep and name.endswith(ENGINE) else None
            if found is None:
                shared = keep and cache_files.enabled()
                found = _shared(name, build, dump, load) if shared else build()
            _objects[name] = found
        return _objects[name]


def _installed(name: str, load: Callable[[bytes], T]) -> T | None:
    """What came with the package; None if it did not, or cannot be used: then it is built."""
    data = cache_files.shipped(name)
    if data is not None:
        with suppress(Exception):
            return load(data)
    return None


def _shared(
    name: str, build: Callable[[], T], dump: Callable[[T], bytes | None], load: Callable[[bytes], T]
) -> T:
    with _Claim(name) as claim:
        while (found := _load(name, load)) is None:
            if claim.held or claim.hopeless:
                for tell in _told:
                    tell()
                found = build()
                data = dump(found)
                claim.done = data is not None and cache_files.save(name, data)
                break
            claim.take_or_wait()
        return found


def _load(name: str, load: Callable[[bytes], T]) -> T | None:
    data = cache_files.load(name)
    if data is not None:
        try:
            return load(data)
        except Exception as error:  # noqa: BLE001  (whatever is wrong with it, building works)
            cache_files.complain(f"{cache_files.folder() / name} cannot be loaded: {error!r}")
    return None


class _Claim:
    """The right to build what is called `name`: a lock on a file beside the record.

    Whoever cannot keep what it has built, or fails, leaves a mark in that file: those that wait
    then build at the same time, not one after the other. In rare cases, such as the file being
    deleted by somebody, two processes build the same; the record is whole in any case.
    """

    held = False
    hopeless = False  # nobody will build it for this process
    done = False  # it has been kept

    def __init__(self, name: str) -> None:
        self._name = f"{name}.lock"
        self._stack = ExitStack()
        self._directory = self._fd = -1

    def __enter__(self) -> _Claim:
        return self

    def take_or_wait(self) -> None:
        """Get hold of the claim, or wait until the process that holds it has ended its work."""
        try:
            if self._fd < 0:
                self._open()
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.held = True
            os.utime(self._fd)  # see `is_wanted`
        except BlockingIOError:
            self._wait()
        except OSError:  # no such folder, or a file system without locks
            self.hopeless = True

    def _open(self) -> None:
        self._directory = self._stack.enter_context(cache_files.opened(make=True))
        self._fd = os.open(self._name, LOCK, 0o600, dir_fd=self._directory)
        self._stack.callback(os.close, self._fd)

    def _wait(self) -> None:
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_SH)  # all that wait go on together
            fcntl.lockf(self._fd, fcntl.LOCK_UN)
            self.hopeless = os.fstat(self._fd).st_size > 0
        except OSError:  # such as EDEADLK: threads of two processes each wait for the other's
            self.hopeless = True

    def __exit__(self, *_: object) -> None:
        with suppress(OSError), self._stack:
            if self.held:
                if not self.done:
                    os.ftruncate(self._fd, 1)  # which also a full disk allows
                os.unlink(self._name, dir_fd=self._directory)
