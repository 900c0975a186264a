"""The operations in kernels: the nvshmem backend's, with NVSHMEM's functions inside."""

from __future__ import annotations

from functools import partial
from typing import Any

from gpushmem.backends.calls import Operation
from gpushmem.backends.nvshmem import lowering
from gpushmem.backends.nvshmem_cpu import functions
from gpushmem.ops import OPS
from gpushmem.simt.compiler.target import bind

__all__ = ["install"]


def install() -> None:
    """Give every row of the operation table its meaning in kernels on this backend."""
    if not _installed:
        _installed.append(True)
        functions.install()
        for name, meaning in lowering.meanings().items():
            op = OPS[name]
            operation = Operation(op, partial(_same, meaning), lowering.check, polls=op.hears)
            bind(op.function, operation)


_installed: list[bool] = []


def _same(meaning: Any) -> Any:
    return meaning
