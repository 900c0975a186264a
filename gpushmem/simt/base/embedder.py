"""The embedder: it serves all launches, also those of `patch`, which are not its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gpushmem.errors import NotInitializedError

__all__ = ["Embedder", "embed", "embedder_of", "told"]


class Embedder:
    """The code whose operations kernels call."""

    def __init__(self, user: Any, explain: Callable[[Any], Exception], told: int = 0) -> None:
        self.user = user  # the array whose address a launch passes to its operations
        self.explain = explain  # its error for a `KernelFailure`
        self.told = told  # address of 40 bytes for the running kernel's name, zeros if none runs


told = np.zeros(1, np.int64)  # the embedder's, where native code finds it
_present: list[Embedder] = []


def embed(embedder: Embedder | None) -> None:
    """Set the embedder; None: there is none."""
    _present[:] = [] if embedder is None else [embedder]
    told[0] = 0 if embedder is None else embedder.told


def embedder_of(kernel: str) -> Embedder:
    """Return the embedder; raises `NotInitializedError`."""
    if not _present:
        raise NotInitializedError(
            f"kernel {kernel} calls operations of gpushmem: call gpushmem.init() before it is "
            "launched, and finalize() after it has ended"
        )
    return _present[0]
