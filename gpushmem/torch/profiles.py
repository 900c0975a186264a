"""Calls of a process group in the profiles of PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from gpushmem.torch.call_forms import flat

__all__ = ["profiling", "recorded"]

profiling = torch.autograd._profiler_enabled  # whether this thread is in a profile
_NOTHING = nullcontext()


def recorded(what: str, tensors: Sequence[Any]) -> AbstractContextManager[Any]:
    """A span of a profile, if there is one, with the shapes of the tensors."""
    if not profiling():
        return _NOTHING
    name = f"gpushmem:{what}"
    return torch._C._profiler._RecordFunctionFast(name, flat(tensors), {})  # type: ignore[no-any-return]
