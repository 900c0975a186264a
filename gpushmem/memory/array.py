"""Arrays in device memory, ordinary and symmetric.

They follow NumPy (shape, dtype, slicing) as far as the host may look at device memory: `numpy()`
copies out, `copy_from` copies in, both after this PE's streams. Slices are views. Other libraries
share their memory through the array protocols, those that a backend's native arrays speak: NumPy's
and DLPack where it is host memory, CUDA's and DLPack where it is a GPU's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from gpushmem.errors import ShmemError, SymmetryError
from gpushmem.memory.stats import Allocated

if TYPE_CHECKING:
    from gpushmem.backends.base import Backend

__all__ = [
    "Allocation",
    "DeviceArray",
    "MulticastArray",
    "Owner",
    "SymmetricArray",
    "peer_view",
    "unwrap",
]


class Owner:
    """Whom memory belongs to that can be taken away while arrays on it are still around."""

    gone: str | None = None  # the call that took it away

    def check(self) -> None:
        """Raise if the memory is gone."""
        raise NotImplementedError


class DeviceArray:
    """An array in device memory of this PE; from `device_array`, `to_device` and `register`."""

    def __init__(self, native: Any, backend: Backend, owner: Owner | None = None) -> None:
        self._native = native
        self._backend = backend
        self._owner = owner

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

    @property
    def T(self) -> Any:  # noqa: N802  (NumPy's name)
        """View with the axes in the opposite order."""
        return self._view(self.native().T)

    def view(self, dtype: Any) -> Any:
        """View of the same bytes as elements of `dtype`.

        The last axis grows or shrinks with the size of an element; it must be contiguous where
        that changes. Raises `ValueError` as NumPy does.
        """
        return self._view(self.native().view(np.dtype(dtype)))

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

    # --- other libraries: the same memory, as long as it is ours

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """NumPy's array interface, where the host can reach the memory. Does not wait."""
        return cast("dict[str, Any]", self.native().__array_interface__)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """CUDA's array interface, where the memory is a GPU's; else `AttributeError`."""
        return cast("dict[str, Any]", self.native().__cuda_array_interface__)

    def __dlpack__(self, **options: Any) -> Any:
        """DLPack capsule of the memory, for `from_dlpack`; waits for this PE's streams."""
        native = self.native()
        self._backend.synchronize()
        return native.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[Any, int]:
        """DLPack's name for the device that the memory is on."""
        return cast("tuple[Any, int]", self.native().__dlpack_device__())

    def __repr__(self) -> str:
        return f"{type(self).__name__}(shape={self.shape}, dtype={self.dtype}{self._where()})"

    # --- for the library

    def native(self) -> Any:
        """The backend's array; raises its owner's error once the memory is gone."""
        if self._owner is not None:
            self._owner.check()
        return self._native

    def _view(self, native: Any) -> Any:
        return type(self)(native, self._backend, self._owner)

    def _where(self) -> str:
        gone = self._owner and self._owner.gone
        return f", gone after {gone}" if gone else ""


def _on_host(values: Any) -> Any:
    return values.numpy() if isinstance(values, DeviceArray) else values


def unwrap(value: Any) -> Any:
    """What a backend works with, for an argument a user gave; tuples are looked into."""
    if isinstance(value, tuple):
        return tuple(unwrap(v) for v in value)
    return value.native() if isinstance(value, DeviceArray) else value


class Allocation(Owner):
    """A block of the symmetric heap; `free` is what gives it back."""

    def __init__(self, made: Allocated, free: Callable[[SymmetricArray], None]) -> None:
        self.made, self.free = made, free

    def check(self) -> None:
        """Raise `SymmetryError` once the block has been freed."""
        if self.gone is not None:
            raise SymmetryError(
                f"symmetric array of shape {self.made.shape} at offset {self.made.offset:#x} "
                f"was used after {self.gone}"
            )


class SymmetricArray(DeviceArray):
    """An array on the symmetric heap, at the same offset on every PE.

    As a context manager, `with zeros(8) as a:`, it is freed at the end of the block, which is then
    collective. An exception that leaves the block leaves the array allocated: the other PEs may be
    elsewhere, and would never come to `free`. Nor does garbage collection ever free one.
    """

    def __init__(self, native: Any, backend: Backend, allocation: Allocation) -> None:
        super().__init__(native, backend, allocation)
        self.allocation = allocation

    @property
    def pe(self) -> int:
        """The PE whose copy of the array this is: the one it was made on."""
        return self._backend.my_pe

    @property
    def offset(self) -> int:
        """Offset of element 0 in the symmetric heap, in bytes: the same on every PE."""
        return self._backend.heap_offset(self.native())

    def __enter__(self) -> SymmetricArray:
        return reject_view(self)

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if error is None:
            self.allocation.free(self)

    def _where(self) -> str:
        return f", pe={self.pe}{super()._where() or f', offset={self.offset:#x}'}"


def peer_view(native: Any, backend: Backend, array: SymmetricArray) -> DeviceArray:
    """The array that `native` is, on memory that is `array`'s on another PE."""
    return DeviceArray(native, backend, array.allocation)


class MulticastArray:
    """A symmetric array as it is on all PEs of a team; made by `multicast_array`.

    What is assigned to it, or to elements and slices of it, is on all of them when the assignment
    is over. It cannot be read.
    """

    def __init__(self, natives: list[Any], backend: Backend, array: SymmetricArray) -> None:
        self._copies = [peer_view(native, backend, array) for native in natives]
        self.shape, self.dtype = array.shape, array.dtype

    def __setitem__(self, index: Any, values: Any) -> None:
        for copy in self._copies:
            copy[index] = values

    def copy_from(self, values: Any) -> None:
        """Write `values`, broadcast, to the array on all PEs of the team."""
        self[...] = values

    def __repr__(self) -> str:
        return f"MulticastArray(shape={self.shape}, dtype={self.dtype}, {len(self._copies)} PEs)"


def reject_view(array: Any) -> SymmetricArray:
    """Return `array` if it is a whole allocation; else raise, for `free`."""
    if not isinstance(array, SymmetricArray):
        raise SymmetryError(f"free: not a symmetric array but {type(array).__name__}")
    if array.offset != array.allocation.made.offset:
        raise ShmemError(
            f"free: this is a view at offset {array.offset:#x} of the array at "
            f"{array.allocation.made.offset:#x}; free that one"
        )
    return array
