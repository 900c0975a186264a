"""Kernels compiled once, by one of several processes, for them and for later runs.

The key of a kernel is its `fingerprint`; `gpushmem.store` finds the code, or has one process
compile it. It stores the result of `entry.freeze`.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from numba.cuda.core import config

from gpushmem import store
from gpushmem.artifacts.fingerprint import fingerprint, name_of
from gpushmem.simt.compiler import observer
from gpushmem.simt.compiler.target import made_of, simt_target
from gpushmem.simt.grid.entry import Entry, freeze, thaw

__all__ = ["compiled", "machine"]


def machine() -> Any:
    """The machine that kernels are compiled for."""
    return simt_target.target_context.codegen().magic_tuple()


def compiled(
    py_func: Callable[..., Any],
    argtypes: tuple[Any, ...],
    options: dict[str, Any],
    build: Callable[[], Entry],
) -> Entry:
    """The entry of a kernel: from the store, or what `build()` returns.

    A kernel made again, as a closure is, has the same entry. A kernel that cannot be described is
    compiled by every process, whenever it is made; so is one that Numba is to print or warn of.
    """
    told = ("DUMP_", "ALWAYS_WARN_")
    if any(value for name, value in vars(config).items() if name.startswith(told)):
        return build()
    if observer.name():
        options = options | {"observer": observer.name()}
    if made_of:
        options = options | {"operations": tuple(made_of)}
    key = fingerprint(py_func, argtypes, options, machine())
    if key is None:
        return build()
    name, lasting = name_of(key)
    return store.get_or_build(name, build, _dump, _load, keep=lasting)


def _dump(entry: Entry) -> bytes | None:
    """An entry as bytes; None if only this process can use it."""
    if entry.cacheable:
        with suppress(Exception):  # an exception class that cannot be pickled, for example
            return pickle.dumps(freeze(entry))
    return None


def _load(data: bytes) -> Entry:
    return thaw(pickle.loads(data))  # noqa: S301  (`disk` checks the owner)
