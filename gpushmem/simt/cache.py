"""Kernels kept on disk, for `cache=True`: a second run compiles nothing.

Numba's own cache, with its habits: beside the source file in `__pycache__`, or where
NUMBA_CACHE_DIR says; a change of the file, of Numba or of this package makes it stale, a change of
another file whose device functions the kernel calls does not.
"""

from __future__ import annotations

from typing import Any

from numba.cuda.core.caching import Cache, CacheImpl

from gpushmem.simt.entry import Entry, freeze, thaw

__all__ = ["KernelCache"]


class _Impl(CacheImpl):
    def reduce(self, data: Entry) -> dict[str, Any]:
        return freeze(data)

    def rebuild(self, target_context: Any, payload: dict[str, Any]) -> Entry:
        return thaw(payload)

    def check_cachable(self, data: Entry) -> bool:
        return data.cachable


class KernelCache(Cache):
    """The entries of one Python function, by argument types."""

    _impl_class = _Impl
