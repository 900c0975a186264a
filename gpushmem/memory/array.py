"""Arrays in device memory, ordinary and symmetric.

They follow NumPy (shape, dtype, slicing) as far as the host may look at device memory: `numpy()`
copies out, `copy_from` copies in, both after this PE's streams. Slices are views.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np

from gpushmem.errors import ShmemError, SymmetryError

if TYPE_CHECKING:
    from gpushmem.backends.base import Backend

__all__ = ["Allocation", "DeviceArray", "SymmetricArray", "unwrap"]


class DeviceArray:
    """An array in ordinary device memory of this PE; made by `device_array` and `to_device`."""

    def __init__(self, native: Any, backend: Backend) -> None:
        self._native = native
        self._backend = backend

    # --- NumPy's vocabulary

    @property
    def shape(self) -> tuple[int, ...]:
        """Extent of each dimension, in elements."""
        return tuple(self._native.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of one element."""
        return cast("np.dtype[Any]", self._native.dtype)

    @property
    def strides(self) -> tuple[int, ...]:
        """Distance of neighbours in each dimension, in bytes."""
        return tuple(self._native.strides)

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def nbytes(self) -> int:
        """Number of bytes of all elements."""
        return self.size * self.dtype.itemsize

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of unsized object")
        return self.shape[0]

    def __getitem__(self, index: Any) -> Any:
        """View of a slice, or a copy of one element as a NumPy scalar."""
        parts = index if isinstance(index, tuple) else (index,)
        if any(part is Ellipsis for part in parts):
            return self._view(self.native()[index])
        as_view = (*parts, Ellipsis)
        view = self.native()[as_view]
        return self._view(view) if view.shape else self._backend.to_host(view)[()]

    def __setitem__(self, index: Any, values: Any) -> None:
        """Write `values`, broadcast, to a slice or an element."""
        parts = index if isinstance(index, tuple) else (index,)
        whole = () if any(part is Ellipsis for part in parts) else (Ellipsis,)
        as_view = (*parts, *whole)
        self._backend.from_host(self.native()[as_view], _on_host(values))

    def reshape(self, *shape: Any) -> Any:
        """View with another shape and the same elements; raises `ValueError` as NumPy does."""
        return self._view(self.native().reshape(*shape))

    def numpy(self) -> np.ndarray[Any, Any]:
        """Wait for this PE's streams and return a copy in host memory."""
        return self._backend.to_host(self.native())

    def copy_from(self, values: Any) -> None:
        """Wait for this PE's streams and write `values`, broadcast, to the array."""
        self._backend.from_host(self.native(), _on_host(values))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """`np.asarray(a)`: the same memory, where the host can reach it (backend `cpu`)."""
        view = self._backend.host_view(self.native())
        if copy or (dtype is not None and dtype != view.dtype):
            return np.array(view, dtype)
        return view

    def __repr__(self) -> str:
        return f"{type(self).__name__}(shape={self.shape}, dtype={self.dtype}{self._where()})"

    # --- for the library

    def native(self) -> Any:
        """The backend's array, after checking that the memory is still ours."""
        return self._native

    def _view(self, native: Any) -> Any:
        return DeviceArray(native, self._backend)

    def _where(self) -> str:
        return ""


def _on_host(values: Any) -> Any:
    return values.numpy() if isinstance(values, DeviceArray) else values


def unwrap(value: Any) -> Any:
    """What a backend works with, for an argument a user gave; tuples are looked into."""
    if isinstance(value, tuple):
        return tuple(unwrap(v) for v in value)
    return value.native() if isinstance(value, DeviceArray) else value


class Allocation:
    """A block of the symmetric heap, and whether it is still allocated."""

    def __init__(self, offset: int, nbytes: int, shape: tuple[int, ...]) -> None:
        self.offset, self.nbytes, self.shape = offset, nbytes, shape
        self.gone: str | None = None  # why it must not be used any more


class SymmetricArray(DeviceArray):
    """An array on the symmetric heap, at the same offset on every PE."""

    def __init__(self, native: Any, backend: Backend, allocation: Allocation) -> None:
        super().__init__(native, backend)
        self.allocation = allocation

    @property
    def pe(self) -> int:
        """The PE whose copy of the array this is: the one it was made on."""
        return self._backend.my_pe

    @property
    def offset(self) -> int:
        """Offset of element 0 in the symmetric heap, in bytes: the same on every PE."""
        return self._backend.heap_offset(self.native())

    def native(self) -> Any:
        """The backend's array; raises `SymmetryError` once the memory has been freed."""
        if self.allocation.gone is not None:
            raise SymmetryError(
                f"symmetric array of shape {self.allocation.shape} at offset "
                f"{self.allocation.offset:#x} was used after {self.allocation.gone}"
            )
        return self._native

    def _view(self, native: Any) -> SymmetricArray:
        return SymmetricArray(native, self._backend, self.allocation)

    def _where(self) -> str:
        gone = self.allocation.gone
        return f", pe={self.pe}, {f'gone after {gone}' if gone else f'offset={self.offset:#x}'}"


def reject_view(array: Any) -> SymmetricArray:
    """Return `array` if it is a whole allocation; else raise, for `free`."""
    if not isinstance(array, SymmetricArray):
        raise SymmetryError(f"free: not a symmetric array but {type(array).__name__}")
    if array.offset != array.allocation.offset:
        raise ShmemError(
            f"free: this is a view at offset {array.offset:#x} of the array at "
            f"{array.allocation.offset:#x}; free that one"
        )
    return array
