"""Kernels compiled once, by one of several processes, for them and for later runs.

The key of a kernel is its `fingerprint`; `gpushmem.store` finds the code, or has one process
compile it. It stores the result of `entry.freeze`.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from numba.cuda.core import config

from gpushmem import disk, store
from gpushmem.artifacts.fingerprint import fingerprint, name_of
from gpushmem.beside import beside
from gpushmem.simt.compiler import observer
from gpushmem.simt.compiler.target import compiling, made_of, simt_target
from gpushmem.simt.grid.entry import Entry, freeze, thaw

__all__ = ["compiled", "improve", "machine"]


def machine() -> Any:
    """The machine that kernels are compiled for."""
    return simt_target.target_context.codegen().magic_tuple()


def compiled(
    py_func: Callable[..., Any],
    argtypes: tuple[Any, ...],
    options: dict[str, Any],
    build: Callable[..., Entry],
    tier: str,
) -> Entry:
    """The entry of a kernel: from the store, or what `build(quick=...)` returns.

    A kernel made again, as a closure is, has the same entry. A kernel that cannot be described is
    compiled by every process, whenever it is made; so is one that Numba is to print or warn of.

    In tier "auto", what has not been optimised before is compiled quickly: `better` is then where
    the store will have it optimised, if `improve` is called. In "fast" it is compiled quickly for
    good, in "full" it is optimised.
    """
    alone = partial(build, quick=tier == "fast")
    told = ("DUMP_", "ALWAYS_WARN_")
    if any(value for name, value in vars(config).items() if name.startswith(told)):
        return alone()
    if observer.name():
        options = options | {"observer": observer.name()}
    if made_of:
        options = options | {"operations": tuple(made_of)}
    key = fingerprint(py_func, argtypes, options, machine())
    if key is None:
        return alone()
    name, lasting = name_of(key)
    later = tier == "auto" and lasting and disk.enabled() and not store.has(name)
    if tier != "fast" and not later:
        return store.get_or_build(name, build, _dump, _load, keep=lasting)
    now = store.key("quick", name)
    entry = store.get_or_build(now, partial(build, quick=True), _dump, _load, keep=lasting)
    return replace(entry, better=name) if later and entry.cacheable else entry


def improve(name: str, build: Callable[[], Entry]) -> None:
    """Have a kernel optimised in the background, if nobody does it: for the store."""
    if store.is_wanted(name):
        with compiling():  # so that no other thread is at work in LLVM when the process is copied
            beside(partial(store.get_or_build, name, build, _dump, _load))


def _dump(entry: Entry) -> bytes | None:
    """An entry as bytes; None if only this process can use it."""
    if entry.cacheable:
        with suppress(Exception):  # an exception class that cannot be pickled, for example
            return pickle.dumps(freeze(entry))
    return None


def _load(data: bytes) -> Entry:
    return thaw(pickle.loads(data))  # noqa: S301  (`disk` checks the owner)
