"""Kernels that are compiled once: by one of several processes, for them and for later runs.

A kernel is looked for in this process, in the processes' common store, which the embedder supplies,
then on disk; who finds it nowhere compiles it, while others that need it wait. Who takes over an
entry gets what `entry.freeze` made of it; see `fingerprint` on when two kernels are the same.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import cache
from typing import Any, Protocol

from gpushmem import disk
from gpushmem.artifacts.fingerprint import fingerprint, lasting
from gpushmem.simt.compiler.target import simt_target
from gpushmem.simt.grid.entry import Entry, freeze, thaw

__all__ = ["Store", "compiled", "machine", "use"]

NOT_SHARED = b""  # kept for a kernel that each process has to compile


class Store(Protocol):
    """Bytes by key, of trusted origin: they are unpickled."""

    def find(self, key: bytes) -> bytes | None:
        """What has been kept under `key`."""

    def add(self, key: bytes, data: bytes) -> None:
        """Keep `data` under `key`, if possible."""

    def claim(self, key: bytes) -> AbstractContextManager[None]:
        """Exclude others who claim the same key, or wait until they have done their work."""


class Alone:
    """The store of a process that shares nothing."""

    def find(self, key: bytes) -> bytes | None:
        """See `Store`."""
        return None

    def add(self, key: bytes, data: bytes) -> None:
        """See `Store`."""

    def claim(self, key: bytes) -> AbstractContextManager[None]:
        """See `Store`."""
        return nullcontext()


_store: Store = Alone()
# One kernel may be made again and again, as a closure is. Its machine code is loaded only once: in
# two copies its symbols would clash.
_entries: dict[bytes, Entry] = {}


@cache
def machine() -> Any:
    """What kernels are compiled for."""
    return simt_target.target_context.codegen().magic_tuple()


def use(store: Store | None) -> None:
    """Share what is compiled from now on through `store`; None: share nothing."""
    global _store  # noqa: PLW0603
    _store = Alone() if store is None else store


def compiled(
    py_func: Callable[..., Any],
    argtypes: tuple[Any, ...],
    options: dict[str, Any],
    build: Callable[[], Entry],
    keep: bool = False,
) -> Entry:
    """The entry of a kernel: another process's if it has made one, else what `build()` returns.

    With `keep` those of earlier and later runs count, too.
    """
    store = _store
    needless = isinstance(store, Alone) and not keep
    key = None if needless else fingerprint(py_func, argtypes, options, machine())
    if key is None:
        return build()
    entry, shared = _find(store, key)
    if entry is None and shared:
        name = lasting(key) if keep else None
        with store.claim(key):
            entry, shared = _find(store, key)
            if entry is None and shared:
                entry = _take_over(store, key, name) or _build(store, key, name, build)
    if entry is None:
        entry = build()
    _entries[key] = entry
    return entry


def _find(store: Store, key: bytes) -> tuple[Entry | None, bool]:
    """What there is under the key, and whether to look, or wait, for it is worth while."""
    if key in _entries:
        return _entries[key], True
    data = store.find(key)
    if not data:
        return None, data is None
    try:
        return thaw(pickle.loads(data)), True  # noqa: S301  (see `Store`)
    except Exception:  # noqa: BLE001  (whatever is wrong with it, compiling works)
        return None, False


def _take_over(store: Store, key: bytes, name: str | None) -> Entry | None:
    """What an earlier run has left on disk, for all."""
    data = None if name is None else disk.load(name)
    if data is None:
        return None
    try:
        entry = thaw(pickle.loads(data))  # noqa: S301  (see `disk` on whom it trusts)
    except Exception as error:  # noqa: BLE001  (whatever is wrong with it, compiling works)
        disk.complain(f"{disk.folder() / str(name)} cannot be loaded: {error!r}")
        return None
    store.add(key, data)
    return entry


def _build(store: Store, key: bytes, name: str | None, build: Callable[[], Entry]) -> Entry:
    """Compile for all. What cannot be shared, and what fails, the others do at the same time."""
    data = NOT_SHARED
    try:
        entry = build()
        if entry.cachable:
            with suppress(Exception):  # such as an exception class that cannot be pickled
                data = pickle.dumps(freeze(entry))
    finally:
        store.add(key, data)
    if name is not None and data:
        disk.save(name, data)
    return entry
