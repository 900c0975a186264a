"""Numba CUDA kernels on a CPU. Knows nothing of PEs.

`Kernel` compiles a Python function, `Device` runs launches on streams, `waits` lists the
waiting threads. An embedder adds operations with `bind`, written with the functions of
`primitives`.

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
