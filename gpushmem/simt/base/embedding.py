"""The embedder: it serves all launches, also those of `patch`, which are not its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpushmem.errors import NotInitializedError

__all__ = ["Embedder", "embed", "embedder_of", "tell"]


class Embedder:
    """The code whose operations kernels call."""

    def __init__(
        self, user: Any, explain: Callable[[Any], Exception], tell: Callable[[str], None]
    ) -> None:
        self.user = user  # the array whose address a launch passes to its operations
        self.explain = explain  # its error for a `KernelFailure`
        self.tell = tell  # called with the name of the running kernel, "" if none


_present: list[Embedder] = []


def embed(embedder: Embedder | None) -> None:
    """Set the embedder; None: there is none."""
    _present[:] = [] if embedder is None else [embedder]


def embedder_of(kernel: str) -> Embedder:
    """Return the embedder; raises `NotInitializedError`."""
    if not _present:
        raise NotInitializedError(
            f"kernel {kernel} calls operations of gpushmem: call gpushmem.init() before it is "
            "launched, and finalize() after it has ended"
        )
    return _present[0]


def tell(kernel: str) -> None:
    """Tell the embedder, if there is one, which kernel runs."""
    for embedder in _present:
        embedder.tell(kernel)
