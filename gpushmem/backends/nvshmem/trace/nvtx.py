"""NVTX ranges: what NVIDIA's profilers show of the host's program."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from importlib.util import find_spec
from typing import Any

__all__ = ["named"]

nvtx = import_module("nvtx") if find_spec("nvtx") else None


def named(name: str) -> AbstractContextManager[Any]:
    """Name, for a `with` block, what the host does; nothing where `nvtx` is not installed."""
    return nullcontext() if nvtx is None else nvtx.annotate(name, domain="gpushmem")
