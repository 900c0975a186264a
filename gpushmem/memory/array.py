"""Arrays in device memory, ordinary and symmetric.

They follow NumPy (shape, dtype, slicing) as far as the host can access device memory: `numpy()`
copies out and `copy_from` copies in, both after this PE's streams. Slices are views. Where device
memory is host memory (backend `cpu`), arrays also compute, compare and print like NumPy's, after
this PE's streams. Other libraries share the memory through the protocols of the backend's native
arrays: NumPy's array interface and DLPack for host memory, CUDA's array interface and DLPack for
GPU memory.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from gpushmem.arguments import public, shown, taking
from gpushmem.artifacts.global_arrays import places
from gpushmem.backends.base import Backend
from gpushmem.errors import (
    ArgumentError,
    ArgumentIndexError,
    ArgumentTypeError,
    ShmemError,
    SymmetryError,
)
from gpushmem.memory.dlpack import capsule
from gpushmem.memory.stats import Allocated
from gpushmem.memory.tensors import GpuTensor, is_tensor, values_of
from gpushmem.memory.validation import SMALL, dtype_of

__all__ = [
    "Allocation",
    "DeviceArray",
    "Lifetime",
    "MulticastArray",
    "SymmetricArray",
    "is_symmetric",
    "peer_view",
    "unwrap",
]


class Lifetime:
    """The lifetime of memory that can be released while arrays still refer to it."""

    released_by: str | None = None  # the call that released the memory

    def check(self) -> None:
        """Raise if the memory has been released."""
        raise NotImplementedError


class DeviceArray(NDArrayOperatorsMixin):
    """An array in device memory of this PE; from `device_array`, `to_device` and `register`.

    Slices, `reshape`, `T` and `view` are views of the same memory; a single element, `a[3]`, is a
    copy, as a NumPy scalar. `a[1:3] = values` writes. Reading or writing elements on the host first
    waits for this PE's streams. Other libraries share the memory (`numpy.asarray(a)` on the cpu
    backend, `torch.from_dlpack(a)`): they see writes, and do not wait for kernels.

    Where device memory is host memory (backend `cpu`), operators, NumPy's functions, `in`, `bool`,
    `print` and `repr` work as for a NumPy array, after this PE's streams: `a == 1` and `a + 1` are
    NumPy arrays, `a += 1` changes `a`. Elsewhere operators raise `ArgumentTypeError` naming the
    alternative (`a.numpy() == 1`), and `repr` shows no values. Like NumPy's, arrays are not
    hashable.
    """

    def __init__(self, native: Any, backend: Backend, lifetime: Lifetime | None = None) -> None:
        self._native = native
        self._backend = backend
        self._lifetime = lifetime

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
        """Distance between neighbouring elements in each dimension, in bytes."""
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
            raise ArgumentTypeError("len() of unsized object")
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        return (self[k] for k in range(len(self)))

    def __getitem__(self, index: Any) -> Any:
        """View of a slice, or a copy of one element as a NumPy scalar."""
        view, whole_view = self._at(index)
        if whole_view or view.shape:
            return self._view(view)
        return self._backend.to_host(view)[()]

    def __setitem__(self, index: Any, values: Any) -> None:
        """Write `values`, broadcast, to a slice or an element."""
        self._write("an assignment", self._at(index)[0], values)

    def reshape(self, *shape: Any) -> Any:
        """View with another shape; raises `ArgumentError` if that would need a copy."""
        native = self.native()
        with taking("reshape"):
            made = native.reshape(*shape)
        if isinstance(made, np.ndarray) and made.size and not np.may_share_memory(made, native):
            raise ArgumentError(
                f"an array of shape {self.shape} and strides {self.strides} cannot be reshaped "
                "without a copy: numpy() makes one"
            )
        return self._view(made)

    @property
    def T(self) -> Any:  # noqa: N802  (NumPy's name)
        """View with the axes reversed."""
        return self._view(self.native().T)

    @public
    def view(self, dtype: Any) -> Any:
        """View of the same bytes as elements of `dtype`.

        If the element size changes, the length of the last axis changes with it, and that axis must
        be contiguous; raises `ArgumentError` if it is not.
        """
        native, dtype = self.native(), dtype_of("view", dtype)
        with taking("view"):
            return self._view(native.view(dtype))

    @public
    def numpy(self) -> np.ndarray[Any, Any]:
        """Wait for this PE's streams and return a copy in host memory.

        Raises the error of a kernel that failed, as `synchronize` does, or the error for released
        memory (`SymmetryError`, `ArgumentError`).
        """
        return self._backend.to_host(self.native())

    @public
    def copy_from(self, values: Any) -> None:
        """Wait for this PE's streams and write `values`, broadcast, to the array.

        `values` is anything NumPy converts to an array, another gpushmem array, or a tensor; they
        are converted to the array's dtype. On return the write is complete on this PE, and `values`
        may be reused. Raises `ArgumentError` if the shapes do not match, otherwise as `numpy()`.
        """
        self._write("copy_from", self.native(), values)

    # --- operators, where the host can access the memory

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        """NumPy's element-wise functions, and the operators based on them."""
        out = options.get("out", ())
        with taking(f"numpy.{ufunc.__name__}"):
            given = [_seen(x, ufunc.__name__) for x in inputs]
            for name, option in options.items():
                several = isinstance(option, tuple)
                seen = tuple(_seen(o, ufunc.__name__) for o in (option if several else (option,)))
                options[name] = seen if several else seen[0]
            result = getattr(ufunc, method)(*given, **options)
        return result if not out else out[0] if len(out) == 1 else out

    def _compute(self, function: Callable[..., Any], name: str, what: str, *others: Any) -> Any:
        seen = [_seen(value, name) for value in (self, *others)]
        with taking(what):
            return function(*seen)

    def __eq__(self, other: Any) -> Any:
        return self._compute(operator.eq, "equal", "==", other)

    def __ne__(self, other: Any) -> Any:
        return self._compute(operator.ne, "not_equal", "!=", other)

    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> bool:
        return bool(self._compute(bool, "bool", "bool"))

    def __contains__(self, value: Any) -> bool:
        return bool(self._compute(operator.contains, "isin", "in", value))

    def __format__(self, form: str) -> str:
        if not form:
            return str(self)
        return str(self._compute(lambda mine: format(mine, form), "format", "format"))

    def __str__(self) -> str:
        return str(_seen(self, "str")) if self._shows() else repr(self)

    def __repr__(self) -> str:
        name = type(self).__name__
        values = ""
        if self._shows():
            values = np.array2string(_seen(self, "repr"), separator=", ", prefix=f"{name}(") + ", "
        return f"{name}({values}shape={self.shape}, dtype={self.dtype}{self._where()})"

    def _shows(self) -> bool:
        """Whether the values can be printed."""
        released = self._lifetime is not None and self._lifetime.released_by
        return not released and hasattr(self._native, "__array_interface__")

    # --- conversion to a NumPy array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """`np.asarray(a)`: a view of the same memory, if the host can access it (backend `cpu`)."""
        view = self._exposed()
        if not hasattr(view, "__array_interface__"):
            raise ShmemError(
                f"an array of shape {self.shape} in a GPU's memory cannot be a NumPy array without "
                "a copy: numpy() makes one; PyTorch and CuPy can share the memory"
            )
        if copy or (dtype is not None and dtype != view.dtype):
            return np.array(view, dtype)
        return view

    # --- other libraries: shared memory, until it is released

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """NumPy's array interface, if the host can access the memory. Does not wait.

        Not for bfloat16, 8-bit floats and records with them, which it cannot describe: NumPy then
        uses `__array__`.
        """
        if self.dtype.kind == "V" or self.dtype in SMALL:
            raise AttributeError(f"NumPy's array interface cannot describe {self.dtype}")
        return cast("dict[str, Any]", self._exposed().__array_interface__)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """CUDA's array interface for GPU memory; else `AttributeError`."""
        return cast("dict[str, Any]", self.native().__cuda_array_interface__)

    def __dlpack__(self, **options: Any) -> Any:
        """DLPack capsule of the memory, for `from_dlpack`; waits for this PE's streams."""
        native = self._exposed()
        self._backend.synchronize()
        return capsule(native, options)

    def __dlpack_device__(self) -> tuple[Any, int]:
        """DLPack's (type, id) of the device that holds the memory."""
        return cast("tuple[Any, int]", self.native().__dlpack_device__())

    # --- internal

    def _at(self, index: Any) -> tuple[Any, bool]:
        """The view at an index, also of one element; and whether the index has an ellipsis."""
        parts = _parts(index)
        whole_view = any(part is Ellipsis for part in parts)
        with taking("an index"):
            return self.native()[parts if whole_view else (*parts, Ellipsis)], whole_view

    def _write(self, what: str, native: Any, values: Any) -> None:
        values = on_host(what, values)
        with taking(what):
            while values.ndim > len(native.shape) and len(values) == 1:
                values = values[0]  # as in NumPy's assignments
            np.broadcast_to(values, native.shape)
            if values.dtype != native.dtype:
                values = values.astype(native.dtype)
        self._backend.from_host(native, values)

    def native(self) -> Any:
        """Return the backend's array; raises if the memory has been released."""
        if self._lifetime is not None:
            self._lifetime.check()
        return self._native

    def _exposed(self) -> Any:
        """Return the backend's array, for code that uses it in its own ways."""
        native = self.native()
        self._backend.expose(native)
        return native

    def _view(self, native: Any) -> Any:
        return type(self)(native, self._backend, self._lifetime)

    def _where(self) -> str:
        released_by = self._lifetime and self._lifetime.released_by
        return f", released by {released_by}" if released_by else ""


def _parts(index: Any) -> tuple[Any, ...]:
    """Split an index into its parts; raises for parts that would need a copy."""
    return tuple(map(_part, index if isinstance(index, tuple) else (index,)))


def _part(part: Any) -> Any:
    if part is None or part is Ellipsis or isinstance(part, slice):
        return part
    try:
        if not isinstance(part, bool | np.bool_):
            return operator.index(part)
    except Exception:  # noqa: BLE001, S110  (the object's own method may raise anything)
        pass
    raise ArgumentIndexError(
        f"an array in device memory is indexed by integers and slices, not by {shown(part)}: "
        "copy it to the host first, with numpy()"
    )


SYMBOLS = {
    "equal": "==", "not_equal": "!=", "less": "<", "less_equal": "<=", "greater": ">",
    "greater_equal": ">=", "add": "+", "subtract": "-", "multiply": "*", "divide": "/",
    "floor_divide": "//", "remainder": "%", "power": "**", "matmul": "@", "bitwise_and": "&",
    "bitwise_or": "|", "bitwise_xor": "^", "left_shift": "<<", "right_shift": ">>",
}  # fmt: skip


def _seen(value: Any, function: str) -> Any:
    """Return `value` as NumPy's `function` can read it; waits for this PE's streams."""
    if not isinstance(value, DeviceArray):
        return values_of(function, value)
    native = value._exposed()
    if not hasattr(native, "__array_interface__"):
        symbol = SYMBOLS.get(function)
        instead = f"a.numpy() {symbol} ..." if symbol else f"{function}(a.numpy())"
        raise ArgumentTypeError(
            f"{symbol or function}: the host cannot access this array of shape {value.shape} in "
            f"GPU memory: write {instead}, which copies it"
        )
    value._backend.synchronize()
    return native


def on_host(what: str, values: Any) -> Any:
    """Return `values` as a NumPy array of numbers; copies gpushmem arrays to the host."""
    if isinstance(values, DeviceArray):
        return values.numpy()
    values = values_of(what, values)
    with taking(what):
        return np.asarray(values)


def unwrap(value: Any) -> Any:
    """Return the backend's object for a user's argument; converts the items of tuples."""
    if isinstance(value, tuple):
        return tuple(unwrap(v) for v in value)
    if isinstance(value, DeviceArray):
        return value.native()
    return GpuTensor("an argument", value) if is_tensor(value) and value.is_cuda else value


class Allocation(Lifetime):
    """A block of the symmetric heap; `free` releases it."""

    def __init__(self, made: Allocated, free: Callable[[SymmetricArray], None]) -> None:
        self.made, self.free = made, free

    def check(self) -> None:
        """Raise `SymmetryError` if the block has been freed."""
        if self.released_by is not None:
            raise SymmetryError(
                f"symmetric array of shape {self.made.shape} at offset {self.made.offset:#x} "
                f"was used after {self.released_by}"
            )


class SymmetricArray(DeviceArray):
    """An array on the symmetric heap, at the same offset on every PE.

    As a context manager, `with zeros(8) as a:`, it is freed at the end of the block, which is then
    collective. If the block ends with an exception, the array stays allocated: the other PEs may
    not reach the matching `free`. Garbage collection never frees a symmetric array.
    """

    def __init__(self, native: Any, backend: Backend, allocation: Allocation) -> None:
        super().__init__(native, backend, allocation)
        self.allocation = allocation

    @property
    def pe(self) -> int:
        """The PE that holds this copy of the array: the PE that allocated it."""
        return self._backend.my_pe

    @property
    def offset(self) -> int:
        """Offset of element 0 in the symmetric heap, in bytes; the same on every PE."""
        return self._backend.heap_offset(self.native())

    def __enter__(self) -> SymmetricArray:
        return reject_view(self, "free")

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if error is None:
            self.allocation.free(self)

    def _where(self) -> str:
        return f", pe={self.pe}{super()._where() or f', offset={self.offset:#x}'}"


def is_symmetric(array: DeviceArray) -> bool:
    """Whether an array is on a symmetric heap, this PE's or another's."""
    return isinstance(array._lifetime, Allocation)


def _named(value: Any) -> np.ndarray[Any, Any] | None:
    """The memory of an array that a kernel names, where that is host memory."""
    native = value.native() if isinstance(value, DeviceArray) else None
    return native if isinstance(native, np.ndarray) else None


places.append(_named)


def peer_view(native: Any, backend: Backend, array: SymmetricArray) -> DeviceArray:
    """Wrap `native`, the memory of `array` on another PE, as an array."""
    return DeviceArray(native, backend, array.allocation)


class MulticastArray:
    """A symmetric array on all PEs of a team at once; made by `multicast_array`.

    Assigning to it, or to its elements and slices, writes to every PE of the team; the writes are
    complete when the assignment returns. It cannot be read.
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


def reject_view(array: Any, what: str) -> SymmetricArray:
    """Return `array` if it starts an allocation; raises for anything else, for `free`."""
    if not isinstance(array, SymmetricArray):
        raise SymmetryError(f"{what}: not a symmetric array but {type(array).__name__}")
    if array.offset != array.allocation.made.offset:
        raise ShmemError(
            f"{what}: this is a view at offset {array.offset:#x} of the array at "
            f"{array.allocation.made.offset:#x}; pass that one"
        )
    return array
