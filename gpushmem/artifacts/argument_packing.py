"""Kernel arguments as numba-cuda lays them out: a list of scalars, 8 bytes each.

An array becomes (meminfo, parent, size, item size, address, extents..., strides...), a complex
number two floats, a record its address, a tuple its elements, one after the other.

`parameters` lays them out as numba-cuda-mlir does: an array as (address, address, 0, extents...,
strides...), strides in elements; a complex number as one parameter; None as nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numba.cuda import types

from gpushmem.artifacts.floats import SMALL
from gpushmem.errors import ArgumentError

__all__ = [
    "Packer", "address_of", "array_words", "as_numpy", "pack", "pack_scalars", "parameters",
    "types_of", "words_of",
]  # fmt: skip

Flat = list[Any]


def address_of(array: np.ndarray[Any, Any]) -> int:
    """Address of an array's first byte."""
    if array.size:
        return array.ctypes.data  # the array interface takes 20 us for a large record
    return int(array.__array_interface__["data"][0])  # `ctypes` would give another


def types_of(
    py_func: Callable[..., Any], args: tuple[Any, ...], type_of: Callable[[Any], Any]
) -> tuple[Any, ...]:
    """The Numba types of a kernel's arguments; raises `ArgumentError` for what it cannot take."""
    return tuple(
        _type_of(py_func, name, value, type_of)
        for name, value in zip(py_func.__code__.co_varnames, args, strict=False)
    )


def _type_of(py_func: Any, name: str, value: Any, type_of: Callable[[Any], Any]) -> Any:
    try:
        typ = type_of(value)
        kind: Any = type(typ)
        if _flattener(kind) is not None:
            return typ
    except Exception:  # noqa: BLE001, S110  (Numba has no type for it; methods of its own may fail)
        pass
    hint = "make it a tuple, or numpy.array(...)" if isinstance(value, list) else TAKEN
    raise ArgumentError(
        f"kernel {py_func.__name__}: argument {name} is of type {type(value).__name__}, which "
        f"kernels cannot take: {hint}"
    ) from None


TAKEN = "they take arrays, numbers, tuples of these, and None"


def pack(argtypes: tuple[Any, ...], args: tuple[Any, ...]) -> bytes:
    """The arguments, 8 bytes for each scalar."""
    return Packer(argtypes)(args)


class Packer:
    """`pack` for arguments of certain types, any number of times."""

    def __init__(self, argtypes: tuple[Any, ...]) -> None:
        self._types = argtypes
        self._flatteners = [_flattener_of(typ) for typ in argtypes]
        self._struct: struct.Struct | None = None  # determined by the types

    def __call__(self, args: tuple[Any, ...]) -> bytes:
        """The arguments, 8 bytes for each scalar."""
        values: Flat = []
        codes = [
            flatten(typ, value, values)
            for flatten, typ, value in zip(self._flatteners, self._types, args, strict=True)
        ]
        if self._struct is None:
            self._struct = struct.Struct("<" + "".join(codes))
        return self._struct.pack(*values)


def parameters(argtypes: tuple[Any, ...], args: tuple[Any, ...]) -> list[Any]:
    """The parameters of a kernel of numba-cuda-mlir: integers of up to 8 bytes, and complex128.

    Raises `ArgumentError` for an array whose strides are no multiples of its item size.
    """
    found: list[Any] = []
    for typ, value in zip(argtypes, args, strict=True):
        _parameters(typ, value, found)
    return found


def _parameters(typ: Any, value: Any, found: list[Any]) -> None:
    if isinstance(typ, types.Array):
        array = value if isinstance(value, np.ndarray) else as_numpy(value)
        if any(stride % array.itemsize for stride in array.strides):
            raise ArgumentError(
                f"an array with strides of {array.strides} bytes and elements of {array.itemsize} "
                "cannot be passed to a kernel of numba-cuda-mlir, which counts strides in "
                "elements: copy it, or compile the kernel with GPUSHMEM_COMPILER=numba-cuda"
            )
        address = address_of(array)
        strides = (stride // array.itemsize for stride in array.strides)
        found += (address, address, 0, *array.shape, *strides)
    elif isinstance(typ, types.BaseTuple):
        for inner, each in zip(typ.types, value, strict=True):
            _parameters(inner, each, found)
    elif isinstance(typ, types.Complex):
        whole = complex(value)
        found.append(
            whole if typ.bitwidth == 128
            else int(np.complex64(whole).view(np.int64))
        )  # fmt: skip
    elif not isinstance(typ, types.NoneType):
        found += words_of(pack((typ,), (value,)))


def words_of(packed: bytes) -> list[int]:
    """What `pack` has packed, in words, as drivers read it: each parameter as far as it goes."""
    return memoryview(packed).cast("q").tolist()


def pack_scalars(scalars: Flat) -> bytes:
    """The same from numba-cuda's own list: integers, and ctypes scalars."""
    code = ""
    values: Flat = []
    for scalar in scalars:
        whole = isinstance(scalar, int)
        code += "Q" if whole else "8s"
        values.append(scalar & (2**64 - 1) if whole else bytes(scalar))
    return struct.pack(f"<{code}", *values)


def _flatten(typ: Any, value: Any, values: Flat) -> str:
    """Append the scalars of `value` to `values`; return their `struct` codes."""
    return _flattener_of(typ)(typ, value, values)


def _flattener_of(typ: Any) -> Callable[[Any, Any, Flat], str]:
    kind: Any = type(typ)
    flatten = _flattener(kind)
    if flatten is None:
        raise ArgumentError(f"a kernel argument cannot be of type {typ}")
    return flatten


@cache
def _flattener(kind: Any) -> Callable[[Any, Any, Flat], str] | None:
    return next((flatten for classes, flatten in FLATTEN if issubclass(kind, classes)), None)


def _array(typ: Any, value: Any, values: Flat) -> str:
    if not isinstance(value, np.ndarray):
        value = as_numpy(value)
    values += array_words(value)
    return "qqqqQ" + "q" * (2 * value.ndim)


def array_words(array: np.ndarray[Any, Any]) -> tuple[int, ...]:
    """An array's scalars: what `pack` makes of it."""
    return 0, 0, array.size, array.itemsize, address_of(array), *array.shape, *array.strides


def as_numpy(value: Any) -> np.ndarray[Any, Any]:
    """An array of another library, through the CUDA array interface.

    It has the dtype of `value`, if that is NumPy's: the interface has no bfloat16.
    """
    interface = value.__cuda_array_interface__
    holder = type("Holder", (), {"__array_interface__": {**interface, "version": 3}})
    array, dtype = np.asarray(holder()), getattr(value, "dtype", None)
    unnamed = isinstance(dtype, np.dtype) and array.dtype.kind == "V"
    return array.view(dtype) if unnamed else array


def _integer(typ: Any, value: Any, values: Flat) -> str:
    values.append(int(value) & (2**64 - 1))
    return "Q"


def _float(typ: Any, value: Any, values: Flat) -> str:
    values.append(float(value))
    return {16: "e6x", 32: "f4x", 64: "d"}[typ.bitwidth]


def _small_float(typ: Any, value: Any, values: Flat) -> str:
    values.append(np.asarray(value).tobytes())
    return "8s"


def _complex(typ: Any, value: Any, values: Flat) -> str:
    values += (value.real, value.imag)
    return {64: "f4xf4x", 128: "dd"}[typ.bitwidth]


def _boolean(typ: Any, value: Any, values: Flat) -> str:
    values.append(bool(value))
    return "?7x"


def _time(typ: Any, value: Any, values: Flat) -> str:
    values.append(int(np.asarray(value).view(np.int64)))
    return "q"


def _record(typ: Any, value: Any, values: Flat) -> str:
    values.append(address_of(np.asarray(value)))
    return "Q"


def _tuple(typ: Any, value: Any, values: Flat) -> str:
    return "".join(_flatten(t, v, values) for t, v in zip(typ.types, value, strict=True))


def _enum(typ: Any, value: Any, values: Flat) -> str:
    return _flatten(typ.dtype, value.value, values)


def _nothing(typ: Any, value: Any, values: Flat) -> str:
    values.append(0)
    return "Q"


FLATTEN: list[tuple[Any, Callable[[Any, Any, Flat], str]]] = [
    (types.Array, _array),
    (types.Boolean, _boolean),
    (types.EnumMember, _enum),
    (types.Integer, _integer),
    (types.Float, _float),
    (SMALL, _small_float),
    (types.Complex, _complex),
    ((types.NPDatetime, types.NPTimedelta), _time),
    (types.Record, _record),
    (types.BaseTuple, _tuple),
    (types.CPointer, _integer),
    ((types.NoneType, types.Dispatcher, types.Function), _nothing),
]
