"""PyTorch tensors in host memory, as NumPy arrays on the same memory.

PyTorch is never imported here: if the user passes a tensor, it has been imported already.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from gpushmem.arguments import shown, taking
from gpushmem.errors import ArgumentTypeError
from gpushmem.memory.validation import dtype_of

__all__ = [
    "GpuTensor", "dtype_name", "in_gpu_memory", "in_host_memory", "is_tensor", "layout_of",
    "memory_of", "values_of",
]  # fmt: skip

# Tensors that share no memory with NumPy, and the alternative to pass.
REFUSED: list[tuple[Callable[[Any], bool], str]] = [
    (lambda t: t.device.type != "cpu", "is in the memory of {t.device}: pass tensor.cpu()"),
    (lambda t: t.layout is not _torch().strided, "is sparse: pass tensor.to_dense()"),
    (lambda t: t.requires_grad, "requires its gradient: pass tensor.detach()"),
    (lambda t: t.is_conj(), "is a lazy conjugate: pass tensor.resolve_conj()"),
    (lambda t: t.is_neg(), "is a lazy negation: pass tensor.resolve_neg()"),
]


def _torch() -> Any:
    return sys.modules.get("torch")


def is_tensor(value: Any) -> bool:
    """Whether `value` is a PyTorch tensor."""
    kind = getattr(_torch(), "Tensor", None)
    return kind is not None and isinstance(value, kind)


def in_host_memory(value: Any) -> bool:
    """Whether `value` is a NumPy array, or a tensor that is not on a GPU."""
    return isinstance(value, np.ndarray) or (is_tensor(value) and not value.is_cuda)


def in_gpu_memory(value: Any) -> bool:
    """Whether `value` is an array in the memory of a GPU."""
    if is_tensor(value):  # whose interface raises what is no `AttributeError`, for 8-bit floats
        return bool(value.is_cuda)
    return hasattr(value, "__cuda_array_interface__")


class GpuTensor:
    """A tensor in a GPU's memory, for backends: with a dtype of NumPy's, also where it has none.

    Raises `ArgumentTypeError` for tensors that are not plain memory.
    """

    def __init__(self, what: str, tensor: Any) -> None:
        for refused, why in REFUSED[1:]:
            if refused(tensor):
                raise ArgumentTypeError(f"{what}: this tensor {why.format(t=tensor)}")
        self.tensor = tensor  # kept alive
        self.dtype, self.shape = dtype_of(what, tensor.dtype), tuple(tensor.shape)
        size = self.dtype.itemsize
        self.__cuda_array_interface__ = {
            "typestr": self.dtype.str if self.dtype.isbuiltin == 1 else f"|V{size}",
            "shape": self.shape,
            "strides": tuple(size * step for step in tensor.stride()),
            "data": (tensor.data_ptr(), False),
            "version": 3,
        }


def layout_of(what: str, value: Any) -> np.ndarray[Any, Any]:
    """Return an array with the address, shape, strides and dtype of `value`, in a GPU's memory.

    It must never be read or written. It keeps `value` alive.
    """
    seen = GpuTensor(what, value) if is_tensor(value) else value
    about, dtype = {**seen.__cuda_array_interface__, "version": 3}, getattr(seen, "dtype", None)
    if isinstance(dtype, np.dtype):  # the interface cannot describe all dtypes: as bytes, then
        of_bytes = f"|V{dtype.itemsize}"
        about |= {"typestr": of_bytes, "descr": [("", of_bytes)]}
    layout = np.asarray(type("Holder", (), {"__array_interface__": about, "of": seen})())
    return layout.view(dtype) if isinstance(dtype, np.dtype) else layout


def dtype_name(dtype: Any) -> str:
    """Return NumPy's name of a dtype, also for PyTorch dtypes."""
    return str(dtype).removeprefix("torch.")


def memory_of(what: str, value: Any) -> Any:
    """Return a NumPy array on a tensor's memory; other values unchanged.

    Raises `ArgumentTypeError` for tensors that cannot share memory with NumPy.
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
        # PyTorch does not export this dtype to NumPy: go through integers of the same size.
        bits = value.view(getattr(_torch(), f"uint{8 * dtype.itemsize}"))
        return bits.numpy().view(dtype)


def values_of(what: str, values: Any) -> Any:
    """As `memory_of`, for values that are only read: resolves lazy conjugates and negations."""
    if is_tensor(values) and not values.is_cuda:
        values = values.resolve_conj().resolve_neg()
    return memory_of(what, values)
