"""Atomic operations of the host, on one element of another PE."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from gpushmem.compat.cuda_core import Buffer
from gpushmem.compat.nvshmem.core import memory, session
from gpushmem.compat.nvshmem.core.nvshmem_types import NvshmemInvalid
from gpushmem.compat.nvshmem.core.rma import buffer_of
from gpushmem.compat.nvshmem.core.utils import named
from gpushmem.ops import OPS, roles

__all__: list[str] = []


def _element(what: str, target: Any, offset: Any, dtype: Any) -> Any:
    """The target's elements from the one at `offset` on, as an array of gpushmem."""
    session.backend(what)
    if isinstance(target, Buffer) and dtype is None:
        raise NvshmemInvalid(f"{what}: give dtype=, a buffer has none")
    has = named(dtype if isinstance(target, Buffer) else target.dtype)
    if dtype is not None and named(dtype) != has:
        raise NvshmemInvalid(f"{what}: the target's elements are of {has}, not of {dtype}")
    words = memory.words(buffer_of(what, target), has)
    try:
        at = operator.index(offset) if not isinstance(offset, bool) else -1
    except TypeError:
        at = -1
    if not 0 <= at < words.size:
        raise NvshmemInvalid(f"{what}: offset {offset!r} is not from 0 to {words.size - 1}")
    if str(has) not in getattr(next(iter(OPS[what].arrays.values())), "dtypes", ()):
        raise NvshmemInvalid(f"{what} does not support {has}")
    return words[at:]


def _call(name: str, target: Any, values: tuple[Any, ...], pe: int, offset: Any, dtype: Any) -> Any:
    found = session.call(name, _element(name, target, offset, dtype), *values, pe)
    return found.item() if hasattr(found, "item") else found


def _of_none(name: str) -> Callable[..., Any]:
    def atomic(target: Any, remote_pe: int = -1, *, offset: int = 0, dtype: Any = None) -> Any:
        return _call(name, target, (), remote_pe, offset, dtype)

    return atomic


def _of_one(name: str) -> Callable[..., Any]:
    def atomic(
        target: Any, value: Any, remote_pe: int = -1, *, offset: int = 0, dtype: Any = None
    ) -> Any:
        return _call(name, target, (value,), remote_pe, offset, dtype)

    return atomic


def _of_two(name: str) -> Callable[..., Any]:
    def atomic(
        target: Any, cond: Any, value: Any, remote_pe: int = -1, *, offset: int = 0,
        dtype: Any = None,
    ) -> Any:  # fmt: skip
        return _call(name, target, (cond, value), remote_pe, offset, dtype)

    return atomic


for _name, _op in OPS.items():
    if _name.startswith("atomic_"):
        _atomic = (_of_none, _of_one, _of_two)[len(_op.named(roles.Value))](_name)
        _atomic.__name__ = _atomic.__qualname__ = _name
        _atomic.__doc__ = _op.doc.splitlines()[0]
        globals()[_name] = _atomic
        __all__ += [_name]  # noqa: PLE0604
