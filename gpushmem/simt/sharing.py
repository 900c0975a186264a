"""Kernels that one of several processes compiles and the others take over.

The embedder says where such code is kept, by setting `store`. Without one, everybody compiles.
Who takes over an entry gets what `entry.freeze` made of it; see `fingerprint` on when two kernels
are the same.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Any, Protocol

from gpushmem.simt.entry import Entry, freeze, thaw
from gpushmem.simt.fingerprint import fingerprint

__all__ = ["Store", "compiled", "use"]

NOT_SHARED = b""  # kept for a kernel that each process has to compile


class Store(Protocol):
    """Bytes by key, of trusted origin: they are unpickled."""

    def find(self, key: bytes) -> bytes | None:
        """What has been kept under `key`."""

    def add(self, key: bytes, data: bytes) -> None:
        """Keep `data` under `key`, if possible."""

    def claim(self, key: bytes) -> AbstractContextManager[None]:
        """Exclude others who claim the same key, or wait until they have done their work."""


_store: Store | None = None
# One kernel may be made again and again, as a closure is. Its machine code is loaded only once: in
# two copies its symbols would clash.
_entries: dict[bytes, Entry] = {}


def use(store: Store | None) -> None:
    """Share what is compiled from now on through `store`; None: share nothing."""
    global _store  # noqa: PLW0603
    _store = store


def compiled(
    py_func: Callable[..., Any],
    argtypes: tuple[Any, ...],
    options: dict[str, Any],
    build: Callable[[], Entry],
) -> Entry:
    """The entry of a kernel: another process's if it has made one, else what `build()` returns."""
    store = _store
    key = None if store is None else fingerprint(py_func, argtypes, options)
    if store is None or key is None:
        return build()
    entry, shared = _find(store, key)
    if entry is None and shared:
        with store.claim(key):
            entry, shared = _find(store, key)
            if entry is None and shared:
                entry = _build(store, key, build)
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


def _build(store: Store, key: bytes, build: Callable[[], Entry]) -> Entry:
    """Compile for all. What cannot be shared, and what fails, the others do at the same time."""
    data = NOT_SHARED
    try:
        entry = build()
        if entry.cachable:
            with suppress(Exception):  # such as an exception class that cannot be pickled
                data = pickle.dumps(freeze(entry))
    finally:
        store.add(key, data)
    return entry
