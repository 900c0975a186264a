"""What an embedder does for launches: for those of `patch`, too, which are not its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpushmem.errors import NotInitializedError

__all__ = ["Embedder", "embed", "embedder_of", "tell"]


class Embedder:
    """Whose operations kernels call."""

    def __init__(
        self, user: Any, explain: Callable[[Any], Exception], tell: Callable[[str], None]
    ) -> None:
        self.user = user  # the array whose address its operations find in a launch
        self.explain = explain  # the error, in its words, that a `KernelFailure` stands for
        self.tell = tell  # gets the name of a kernel that runs, "" when none does


_present: list[Embedder] = []


def embed(embedder: Embedder | None) -> None:
    """Have all kernels' operations be those of this embedder; of nobody."""
    _present[:] = [] if embedder is None else [embedder]


def embedder_of(kernel: str) -> Embedder:
    """The embedder there is; raises `NotInitializedError`."""
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
