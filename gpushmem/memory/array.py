"""Arrays in device memory, ordinary and symmetric.

They follow NumPy (shape, dtype, slicing) as far as the host may look at device memory: `numpy()`
copies out, `copy_from` copies in, both after this PE's streams. Slices are views. Where the memory
is the host's they also compute, compare and print as NumPy's, after this PE's streams. Other
libraries share their memory through the array protocols, those that a backend's native arrays
speak: NumPy's and DLPack where it is host memory, CUDA's and DLPack where it is a GPU's.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from gpushmem.arguments import public, shown, taking
from gpushmem.errors import (
    ArgumentError,
    ArgumentIndexError,
    ArgumentTypeError,
    ShmemError,
    SymmetryError,
)
from gpushmem.memory.asked import dtype_of
from gpushmem.memory.dlpack import capsule
from gpushmem.memory.stats import Allocated
from gpushmem.memory.tensors import values_of

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


class DeviceArray(NDArrayOperatorsMixin):
    """An array in device memory of this PE; from `device_array`, `to_device` and `register`.

    Slices, `reshape`, `T` and `view` are views of the same memory; one element, `a[3]`, is a copy,
    as a NumPy scalar. `a[1:3] = values` writes. What reads or writes the elements on the host first
    waits for this PE's streams. Other libraries share the memory (`numpy.asarray(a)` on the cpu
    backend, `torch.from_dlpack(a)`): they see what is written, and do not wait for kernels.

    Where that is host memory (backend `cpu`), operators, NumPy's functions, `in`, `bool`, `print`
    and `repr` do what they do for a NumPy array, once this PE's streams are done: `a == 1` and
    `a + 1` are NumPy arrays, `a += 1` changes `a`. Elsewhere operators raise `ArgumentTypeError`,
    which says what to write (`a.numpy() == 1`), and `repr` shows no values. As NumPy's, arrays
    have no hash.
    """

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
            raise ArgumentTypeError("len() of unsized object")
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        return (self[k] for k in range(len(self)))

    def __getitem__(self, index: Any) -> Any:
        """View of a slice, or a copy of one element as a NumPy scalar."""
        parts = _parts(index)
        whole_view = any(part is Ellipsis for part in parts)
        as_view = parts if whole_view else (*parts, Ellipsis)
        with taking("an index"):
            view = self.native()[as_view]
        if whole_view or view.shape:
            return self._view(view)
        return self._backend.to_host(view)[()]

    def __setitem__(self, index: Any, values: Any) -> None:
        """Write `values`, broadcast, to a slice or an element."""
        parts = _parts(index)
        as_view = parts if any(part is Ellipsis for part in parts) else (*parts, Ellipsis)
        with taking("an index"):
            view = self.native()[as_view]
        self._write("an assignment", view, values)

    def reshape(self, *shape: Any) -> Any:
        """View with another shape and the same elements; raises `ArgumentError` if none can be."""
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
        """View with the axes in the opposite order."""
        return self._view(self.native().T)

    @public
    def view(self, dtype: Any) -> Any:
        """View of the same bytes as elements of `dtype`.

        The last axis grows or shrinks with the size of an element; it must be contiguous where
        that changes. Raises `ArgumentError` where it is not.
        """
        native, dtype = self.native(), dtype_of("view", dtype)
        with taking("view"):
            return self._view(native.view(dtype))

    @public
    def numpy(self) -> np.ndarray[Any, Any]:
        """Wait for this PE's streams and return a copy in host memory.

        Raises the error of a kernel that failed, as `synchronize` does; the owner's error once the
        memory is gone.
        """
        return self._backend.to_host(self.native())

    @public
    def copy_from(self, values: Any) -> None:
        """Wait for this PE's streams and write `values`, broadcast, to the array.

        `values` is what NumPy makes an array of, another array of ours, or a tensor; they are
        converted to the array's dtype. On return they are there, on this PE, and `values` may be
        reused. Raises `ArgumentError` for shapes that do not fit, else as `numpy()`.
        """
        self._write("copy_from", self.native(), values)

    # --- operators, where the host can reach the memory

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        """NumPy's functions of elements, and the operators made of them."""
        out = options.get("out", ())
        with taking(f"numpy.{ufunc.__name__}"):
            given = [_seen(x, ufunc.__name__) for x in inputs]
            for name, option in options.items():
                several = isinstance(option, tuple)
                seen = tuple(_seen(o, ufunc.__name__) for o in (option if several else (option,)))
                options[name] = seen if several else seen[0]
            result = getattr(ufunc, method)(*given, **options)
        return result if not out else out[0] if len(out) == 1 else out

    def __eq__(self, other: Any) -> Any:
        mine, other = _seen(self, "equal"), _seen(other, "equal")
        with taking("=="):
            return mine == other

    def __ne__(self, other: Any) -> Any:
        mine, other = _seen(self, "not_equal"), _seen(other, "not_equal")
        with taking("!="):
            return mine != other

    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> bool:
        mine = _seen(self, "bool")
        with taking("bool"):
            return bool(mine)

    def __contains__(self, value: Any) -> bool:
        mine, value = _seen(self, "isin"), _seen(value, "isin")
        with taking("in"):
            return value in mine

    def __format__(self, form: str) -> str:
        if not form:
            return str(self)
        mine = _seen(self, "format")
        with taking("format"):
            return format(mine, form)

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
        gone = self._owner is not None and self._owner.gone
        return not gone and hasattr(self._native, "__array_interface__")

    # --- NumPy's own view of it

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """`np.asarray(a)`: the same memory, where the host can reach it (backend `cpu`)."""
        view = self.native()
        if not hasattr(view, "__array_interface__"):
            raise ShmemError(
                f"an array of shape {self.shape} in a GPU's memory cannot be a NumPy array without "
                "a copy: numpy() makes one; PyTorch and CuPy can share the memory"
            )
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
        return capsule(native, options)

    def __dlpack_device__(self) -> tuple[Any, int]:
        """DLPack's name for the device that the memory is on."""
        return cast("tuple[Any, int]", self.native().__dlpack_device__())

    # --- for the library

    def _write(self, what: str, native: Any, values: Any) -> None:
        values = on_host(what, values)
        with taking(what):
            while values.ndim > len(native.shape) and len(values) == 1:
                values = values[0]  # as NumPy's assignments do
            np.broadcast_to(values, native.shape)
            if values.dtype != native.dtype:
                values = values.astype(native.dtype)
        self._backend.from_host(native, values)

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


def _parts(index: Any) -> tuple[Any, ...]:
    """The parts of an index, those for which there is a view; what needs a copy is refused."""
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
    """What NumPy's `function` can look at: our memory where it is the host's, when it is ready."""
    if not isinstance(value, DeviceArray):
        return values_of(function, value)
    native = value.native()
    if not hasattr(native, "__array_interface__"):
        symbol = SYMBOLS.get(function)
        instead = f"a.numpy() {symbol} ..." if symbol else f"{function}(a.numpy())"
        raise ArgumentTypeError(
            f"{symbol or function}: the host does not reach this array of shape {value.shape}, "
            f"which is in a GPU's memory: write {instead}, which copies it"
        )
    value._backend.synchronize()
    return native


def on_host(what: str, values: Any) -> Any:
    """`values` as a NumPy array of numbers; of a tensor or ours, its values."""
    if isinstance(values, DeviceArray):
        return values.numpy()
    values = values_of(what, values)
    with taking(what):
        return np.asarray(values)


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
