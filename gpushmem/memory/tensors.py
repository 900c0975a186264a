"""PyTorch's tensors in host memory, as NumPy arrays on the same memory.

PyTorch is not imported: who gives a tensor has done so.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from gpushmem.arguments import shown, taking
from gpushmem.errors import ArgumentTypeError
from gpushmem.memory.asked import dtype_of

__all__ = ["dtype_name", "in_host_memory", "is_tensor", "memory_of", "values_of"]

# What shares no memory with NumPy, and what to pass instead.
REFUSED: list[tuple[Callable[[Any], bool], str]] = [
    (lambda t: t.device.type != "cpu", "is in the memory of {t.device}: pass tensor.cpu()"),
    (lambda t: t.layout is not _torch().strided, "is sparse: pass tensor.to_dense()"),
    (lambda t: t.requires_grad, "requires its gradient: pass tensor.detach()"),
    (lambda t: t.is_conj(), "is a conjugate yet to be made: pass tensor.resolve_conj()"),
    (lambda t: t.is_neg(), "is a negative yet to be made: pass tensor.resolve_neg()"),
]


def _torch() -> Any:
    return sys.modules.get("torch")


def is_tensor(value: Any) -> bool:
    """Whether `value` is a tensor of PyTorch."""
    kind = getattr(_torch(), "Tensor", None)
    return kind is not None and isinstance(value, kind)


def in_host_memory(value: Any) -> bool:
    """Whether `value` is an array of NumPy's, or a tensor that is not a GPU's."""
    return isinstance(value, np.ndarray) or (is_tensor(value) and not value.is_cuda)


def dtype_name(dtype: Any) -> str:
    """What NumPy calls a dtype, also one of PyTorch's."""
    return str(dtype).removeprefix("torch.")


def memory_of(what: str, value: Any) -> Any:
    """The NumPy array on a tensor's memory; what is no tensor as it is.

    Raises `ArgumentTypeError` for tensors that share no memory with NumPy.
    """
    if not is_tensor(value):
        return value
    for refused, why in REFUSED:
        if refused(value):
            raise ArgumentTypeError(f"{what}: this tensor {why.format(t=value)}")
    with taking(f"{what}: {shown(value)}"):
        dtype = dtype_of(what, value.dtype)
        if dtype.isbuiltin == 1:
            return value.numpy()
        # One that PyTorch does not give to NumPy: the same bits as integers are.
        bits = value.view(getattr(_torch(), f"uint{8 * dtype.itemsize}"))
        return bits.numpy().view(dtype)


def values_of(what: str, values: Any) -> Any:
    """As `memory_of`, for values that are only read: what is yet to be computed is."""
    if is_tensor(values) and not values.is_cuda:
        values = values.resolve_conj().resolve_neg()
    return memory_of(what, values)
