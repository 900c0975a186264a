"""Arrays in GPU memory, which kernels take, Python slices, and other libraries can share."""

from __future__ import annotations

from collections import defaultdict
from functools import cached_property
from itertools import count
from typing import Any

import numpy as np
from cuda.core import Buffer
from cuda.core.utils import StridedMemoryView
from numba.cuda.typing.typeof import Purpose, typeof, typeof_impl

from gpushmem.artifacts.argument_packing import array_words, parameters

__all__ = ["GpuArray", "at"]

Layout = np.ndarray[Any, Any]

# Arrays of the same dtype, number of axes and flags have one number, and one Numba type.
_kinds: defaultdict[tuple[Any, ...], int] = defaultdict(count().__next__)
_types: dict[int, Any] = {}


class GpuArray:
    """An array in GPU memory.

    `layout` is a NumPy array of the same address, shape and strides: NumPy does the arithmetic of
    slices and views. It must never be read or written, as the host cannot reach the memory.
    """

    def __init__(self, layout: Layout, owner: Any = None) -> None:
        self.layout = layout
        self.owner = owner  # keeps the memory alive

    shape = property(lambda self: self.layout.shape)
    strides = property(lambda self: self.layout.strides)
    dtype = property(lambda self: self.layout.dtype)
    size = property(lambda self: self.layout.size)
    nbytes = property(lambda self: self.layout.nbytes)

    @cached_property
    def kind(self) -> int:
        """A number that arrays of its Numba type alone have."""
        layout = self.layout
        return _kinds[layout.dtype, layout.ndim, layout.flags.num]

    @cached_property
    def type(self) -> Any:
        """Its Numba type."""
        found = _types.get(self.kind)
        if found is None:
            found = _types[self.kind] = typeof(self.layout, Purpose.argument)
        return found

    @cached_property
    def words(self) -> tuple[int, ...]:
        """What a kernel of numba-cuda gets of it, in words."""
        return array_words(self.layout)

    @cached_property
    def parameters(self) -> list[Any]:
        """What a kernel of numba-cuda-mlir gets of it; raises as `argument_packing.parameters`."""
        return parameters((self.type,), (self.layout,))

    @property
    def address(self) -> int:
        """Address of element 0."""
        return int(self.layout.__array_interface__["data"][0])

    def __getitem__(self, index: Any) -> GpuArray:
        """View of a slice; an integer for every axis gives an array without axes."""
        parts = index if isinstance(index, tuple) else (index,)
        whole_view = () if any(part is Ellipsis for part in parts) else (Ellipsis,)
        return GpuArray(self.layout[parts + whole_view], self.owner)

    def reshape(self, *shape: Any) -> GpuArray:
        """View with another shape; raises `ValueError` where NumPy would have to copy."""
        if not self.layout.flags.c_contiguous:
            raise ValueError(
                f"an array of shape {self.shape} and strides {self.strides} in a GPU's memory "
                "cannot be reshaped without a copy"
            )
        return GpuArray(self.layout.reshape(*shape), self.owner)

    @property
    def T(self) -> GpuArray:  # noqa: N802  (NumPy's name)
        """View with the axes in the opposite order."""
        return GpuArray(self.layout.T, self.owner)

    def view(self, dtype: Any) -> GpuArray:
        """View of the same bytes as elements of `dtype`."""
        return GpuArray(self.layout.view(dtype), self.owner)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        interface = self.layout.__array_interface__
        return {**interface, "version": 3, "stream": None}

    def __dlpack__(self, **options: Any) -> Any:
        buffer = Buffer.from_handle(self.address, max(1, self.nbytes), owner=self)
        steps = tuple(s // self.layout.itemsize for s in self.strides)
        view = StridedMemoryView.from_buffer(buffer, self.shape, steps, dtype=self.dtype)
        return view.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        buffer = Buffer.from_handle(self.address, max(1, self.nbytes), owner=self)
        device: tuple[int, int] = buffer.__dlpack_device__()
        return device


def at(address: int, shape: tuple[int, ...], dtype: np.dtype[Any], owner: Any = None) -> GpuArray:
    """The array of contiguous elements at a device address."""
    nbytes = max(1, int(np.prod(shape, dtype=np.int64)) * dtype.itemsize)
    interface = {"shape": (nbytes,), "typestr": "|u1", "data": (address, False), "version": 3}
    layout = np.asarray(type("Holder", (), {"__array_interface__": interface})())
    return GpuArray(np.ndarray(shape, dtype, layout), owner)


@typeof_impl.register(GpuArray)
def _(array: GpuArray, context: Any) -> Any:
    return array.type
