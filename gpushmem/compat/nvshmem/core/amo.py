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


def _call(
    name: str, target: Any, *values: Any, remote_pe: int = -1, offset: int = 0, dtype: Any = None
) -> Any:
    n = len(OPS[name].named(roles.Value))
    if len(values) == n + 1:
        *values, remote_pe = values  # type: ignore[assignment]
    if len(values) != n:
        raise TypeError(f"{name}: {n} values and remote_pe, not {len(values)} values")
    found = OPS[name].function(_element(name, target, offset, dtype), *values, remote_pe)
    return None if found is None else found.item() if hasattr(found, "item") else found


def _make(name: str) -> Callable[..., Any]:
    def atomic(target: Any, *values: Any, **options: Any) -> Any:
        named_values = [options.pop(key) for key in ("cond", "value") if key in options]
        return _call(name, target, *values, *named_values, **options)

    atomic.__name__ = atomic.__qualname__ = name
    atomic.__doc__ = f"{OPS[name].doc.splitlines()[0]}"
    return atomic


for _name in OPS:
    if _name.startswith("atomic_"):
        globals()[_name] = _make(_name)
        __all__ += [_name]  # noqa: PLE0604
