"""Kernels compiled once, by one of several processes, for them and for later runs.

The key of a kernel is its `fingerprint`; `gpushmem.code_store` finds the code, or has one process
compile it. It stores the result of `entry.freeze`.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from numba import types
from numba.cuda.core import config

from gpushmem import cache_files, code_store
from gpushmem.artifacts.fingerprint import digest_of, fingerprint, name_of
from gpushmem.background import beside
from gpushmem.simt.compiler import observer
from gpushmem.simt.compiler.target import compiling, made_of, simt_target
from gpushmem.simt.grid.entry import Entry, freeze, thaw

__all__ = ["compiled", "improve", "improved", "machine", "warm_up"]

NICE = 10


def machine() -> Any:
    """The machine that kernels are compiled for."""
    return simt_target.target_context.codegen().magic_tuple()


def warm_up() -> None:
    """Prepare what names of kernels are made of: a first look at each type of thing takes long."""
    machine()
    digest_of((types.int64[::1],))


AGE = 60.0  # seconds: what was compiled quickly before that, an earlier job has left


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

    In tier "auto", what has not been optimised before is compiled quickly, if it can be kept:
    `better` is then where the store will have it optimised, see `improve`. In "fast" it is compiled
    quickly for good, in "full" it is optimised.
    """
    name, lasting = name_for(py_func, argtypes, options)
    if name is None:
        return build(quick=tier == "fast")
    later = tier == "auto" and lasting and cache_files.enabled() and not code_store.has(name)
    if tier != "fast" and not later:
        return code_store.get_or_build(name, build, _dump, _load, keep=lasting)
    now = code_store.key("quick", name)
    entry = code_store.get_or_build(now, partial(build, quick=True), _dump, _load, keep=lasting)
    if not later:
        return entry
    if not cache_files.has(now):  # what is made in the background could not be kept, either
        return code_store.get_or_build(name, build, _dump, _load)
    return replace(entry, better=name, overdue=not cache_files.has(now, AGE))


def name_for(
    py_func: Callable[..., Any], argtypes: tuple[Any, ...], options: dict[str, Any]
) -> tuple[str | None, bool]:
    """The store's name for a kernel, and whether later runs can use its code; None: it has none."""
    told = ("DUMP_", "ALWAYS_WARN_")
    if any(value for name, value in vars(config).items() if name.startswith(told)):
        return None, False
    if observer.name():
        options = options | {"observer": observer.name()}
    if made_of:
        options = options | {"operations": tuple(made_of)}
    key = fingerprint(py_func, argtypes, options, machine())
    return (None, False) if key is None else name_of(key)


def improve(
    name: str,
    py_func: Callable[..., Any],
    argtypes: tuple[Any, ...],
    options: dict[str, Any],
    build: Callable[[], Entry],
) -> None:
    """Have a kernel optimised in the background, for the store, if nobody does it.

    Not if its name is another one by now: a global that it uses has changed.
    """
    if code_store.is_wanted(name) and name_for(py_func, argtypes, options)[0] == name:
        with compiling():  # so that no other thread is at work in LLVM when the process is copied
            beside(partial(code_store.get_or_build, name, build, _dump, _load), nice=NICE)


def improved(name: str) -> Entry | None:
    """The code that `improve` has had made; None if there is none yet."""
    found: Entry | None = code_store.get(name, _load)
    return found


def _dump(entry: Entry) -> bytes | None:
    """An entry as bytes; None if only this process can use it."""
    if entry.cacheable:
        with suppress(Exception):  # an exception class that cannot be pickled, for example
            return pickle.dumps(freeze(entry))
    return None


def _load(data: bytes) -> Entry:
    return thaw(pickle.loads(data))  # noqa: S301  (`cache_files` checks the owner)
