"""What a job's PEs did, and when: recorded by `gpushmem run --trace DIR`, read by `load`.

What reads traces is loaded on first use: each PE imports this package for what it records.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpushmem.trace.page import show
    from gpushmem.trace.reading import Trace, load

__all__ = ["Trace", "load", "show"]

FROM = {"Trace": "reading", "load": "reading", "show": "page"}


def __getattr__(name: str) -> Any:
    if name not in FROM:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{FROM[name]}"), name)
