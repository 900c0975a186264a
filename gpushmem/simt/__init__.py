"""Numba CUDA kernels on a CPU. Knows nothing of PEs.

What is outside of this folder imports nothing of it but the names of its modules `embed`,
`functions`, `thread`, `layout`, `observe`, `launch`, `waits`, `libraries` and `programs`:
docs/engine.md has a table.

For users: `enable` and `disable`, the CUDA simulator for programs of `numba.cuda`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpushmem.simulator import disable, enable

__all__ = ["disable", "enable"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from gpushmem import simulator  # noqa: PLC0415  (it is above the engine)

    return getattr(simulator, name)
